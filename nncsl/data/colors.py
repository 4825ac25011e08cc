"""Color operations on batches of 8-bit images, one set of parameters per image, each in place and in few passes.

An image here is float32 [n, C, H, W] holding integer levels 0..255, and every operation leaves such levels: it rounds
where Pillow rounds, because the recipe was published on 8-bit images and equalize needs whole levels. Only single IEEE
operations and exact sums are used (never a transcendental function, nor a fused multiply-add that could round), so that
a pixel does not depend on its position in the batch.
"""

import torch
from torch import Tensor

JITTERS = ("brightness", "contrast", "saturation", "hue")


def brightness(levels: Tensor, factor: Tensor) -> Tensor:
    """factor [n, 1, 1, 1]: 0 is black, 1 leaves the image alone."""
    return levels.mul_(factor).clamp_(0, 255).floor_()


def contrast(levels: Tensor, factor: Tensor) -> Tensor:
    """Away from (factor > 1) or towards the image's mean luma."""
    gray = luma(levels)
    total = gray.sum(dim=3, keepdim=True).sum(dim=(1, 2), keepdim=True, dtype=torch.float64)  # exact, rows in float32
    mean = total / gray[0].numel()
    return _blend(mean.add_(0.5).floor_().float(), levels, factor)


def saturation(levels: Tensor, factor: Tensor) -> Tensor:
    """Away from (factor > 1) or towards the gray image."""
    return _blend(luma(levels), levels, factor)


def hue(levels: Tensor, turn: Tensor) -> Tensor:
    """Turn the hue by a fraction of the color circle, turn [n, 1, 1, 1] in [-1/2, 1/2]; value and chroma stay.

    Angles are counted in units of a sixth of the circle times the chroma, hence without a division: then all of them
    are integers but the turn, and to round the turn is to round the result, as Pillow does. Pillow's detour over 8-bit
    hue and saturation is not reproduced.
    """
    pixels = levels.to(torch.int16)
    red, green, blue = pixels.split(1, dim=1)
    larger, smaller = torch.maximum(red, blue), torch.minimum(red, blue)
    value, least = torch.maximum(larger, green), torch.minimum(smaller, green)
    chroma = value - least
    # The way from green: to where blue or red is as large, on to where green has faded, on to where the other is large.
    angle = larger.sub_(smaller).add_(smaller.sub_(least), alpha=2).add_(value).sub_(green)
    negative = torch.sub(blue, red, out=smaller).bitwise_right_shift_(15)  # -1 on red's side, 0 on blue's
    angle.bitwise_xor_(negative).sub_(negative)
    angle.add_(chroma.float().mul_(turn * 6).round_().to(torch.int16))
    torch.add(angle, chroma, alpha=2, out=red)
    green.copy_(angle)
    torch.sub(angle, chroma, alpha=2, out=blue)
    # How far a channel is from its own hue, the shorter way round: full up to one sixth, least from two sixths on.
    half = chroma * 3
    pixels.abs_().sub_(half).abs_().sub_(half).abs_()
    return levels.copy_(torch.sub(chroma.add_(value), pixels, out=pixels).clamp_(least, value))


def solarize(levels: Tensor, threshold: Tensor) -> Tensor:
    """Invert the levels at and above threshold [n, 1, 1, 1]."""
    inverted = levels.sub(threshold.ceil() - 1).clamp_(0, 1)
    return levels.sub_(inverted, alpha=255).abs_()


def gray(levels: Tensor) -> Tensor:
    """The image without color, in as many channels."""
    return levels.copy_(luma(levels).expand_as(levels))


def luma(levels: Tensor) -> Tensor:
    """Luma [n, 1, H, W]; the weights are integers out of 2^16, so the sum is exact in float32."""
    red, green, blue = levels.split(1, dim=1)
    total = torch.mul(red, 19595 / 2**16)
    return total.add_(green, alpha=38470 / 2**16).add_(blue, alpha=7471 / 2**16).add_(0.5).floor_()


def equalize(levels: Tensor) -> Tensor:
    """Spread each channel's histogram over all levels; a channel with too few pixels to spread stays as it is."""
    n, channels, height, width = levels.shape
    pixels = levels.reshape(n * channels, height * width)
    rows = torch.arange(0, n * channels * 256, 256, dtype=torch.int32, device=levels.device)[:, None]
    entries = pixels.to(torch.int32).add_(rows).flatten()
    histogram = _counts(entries, n * channels * 256).view(-1, 256)
    brightest = histogram.gather(1, pixels.amax(1, keepdim=True).long())
    step = ((height * width - brightest) // 255).float()
    below = (histogram.cumsum(1) - histogram).float()
    # Exact: floats hold these integers, and their quotient is rounded to a whole number only where it is one.
    table = below.add_(step.mul(0.5).floor_()).div_(step.clamp(min=1)).floor_().clamp_(max=255)
    table = torch.where(step > 0, table, torch.arange(256, dtype=table.dtype, device=levels.device))
    return levels.copy_(table.flatten().index_select(0, entries).view_as(levels))


def _counts(entries: Tensor, most: int) -> Tensor:
    """Return how often each of 0..most - 1 occurs; not by bincount where that would wait for the device."""
    if entries.device.type == "cpu":
        return torch.bincount(entries, minlength=most)
    ones = torch.ones(len(entries), dtype=torch.int64, device=entries.device)
    return torch.zeros(most, dtype=torch.int64, device=entries.device).scatter_add_(0, entries.long(), ones)


def _blend(other: Tensor, levels: Tensor, factor: Tensor) -> Tensor:
    return levels.sub_(other).mul_(factor).add_(other).clamp_(0, 255).floor_()
