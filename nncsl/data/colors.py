"""Color operations on batches of 8-bit images, one set of parameters per image.

An image here is float32 [n, C, H, W] holding integer levels 0..255, and every operation returns such levels: it rounds
where Pillow rounds, because the recipe was published on 8-bit images and equalize needs whole levels. Only single IEEE
operations and exact sums are used (never a fused multiply-add or a transcendental function), so that a pixel does not
depend on its position in the batch.
"""

import torch
from torch import Tensor

JITTERS = ("brightness", "contrast", "saturation", "hue")


def brightness(levels: Tensor, factor: Tensor) -> Tensor:
    """factor [n, 1, 1, 1]: 0 is black, 1 leaves the image alone."""
    return levels.mul(factor).clamp_(0, 255).floor_()


def contrast(levels: Tensor, factor: Tensor) -> Tensor:
    """Away from (factor > 1) or towards the image's mean luma."""
    gray = luma(levels)
    mean = gray.sum(dim=(1, 2, 3), keepdim=True, dtype=torch.float64) / gray[0].numel()
    return _blend(mean.add_(0.5).floor_().float(), levels, factor)


def saturation(levels: Tensor, factor: Tensor) -> Tensor:
    """Away from (factor > 1) or towards the gray image."""
    return _blend(luma(levels), levels, factor)


def hue(levels: Tensor, turn: Tensor) -> Tensor:
    """Turn the hue by a fraction of the color circle, turn [n, 1, 1, 1] in [-1/2, 1/2]; value and chroma stay.

    In floating point, as torchvision does on tensors; Pillow's detour over 8-bit hue and saturation is not reproduced.
    """
    red, green, blue = levels.unbind(1)
    value = levels.amax(1)
    chroma = value - levels.amin(1)
    is_red, is_green = value == red, value == green
    difference = torch.where(is_red, green - blue, torch.where(is_green, blue - red, red - green))
    sector = torch.where(is_red, 0.0, torch.where(is_green, 2.0, 4.0))
    angle = difference.div_(chroma.clamp(min=1.0)).add_(sector).add_(turn[:, 0] * 6.0)
    angle.sub_(angle.mul(1 / 6).floor_().mul_(6.0))  # in [0, 6]; both ends are the same red
    turned = torch.empty_like(levels)
    # How much of the chroma a channel lacks: none within one sixth of its own hue, all of it two sixths away.
    torch.sub(2.0, angle.sub(3.0).abs_(), out=turned[:, 0])
    torch.sub(angle.sub(2.0).abs_(), 1.0, out=turned[:, 1])
    torch.sub(angle.sub_(4.0).abs_(), 1.0, out=turned[:, 2])
    turned.clamp_(0, 1).mul_(chroma[:, None])
    return torch.sub(value[:, None], turned, out=turned).mul_(255.999 / 255).floor_()


def solarize(levels: Tensor, threshold: Tensor) -> Tensor:
    """Invert the levels at and above threshold [n, 1, 1, 1]."""
    return torch.where(levels >= threshold, 255 - levels, levels)


def gray(levels: Tensor) -> Tensor:
    """The image without color, in as many channels."""
    return luma(levels).expand_as(levels)


def luma(levels: Tensor) -> Tensor:
    """Luma [n, 1, H, W]; the weights are integers out of 2^16, so the sum is exact in float32."""
    red, green, blue = levels.split(1, dim=1)
    total = red * 19595.0
    return total.add_(green * 38470.0).add_(blue * 7471.0).add_(32768.0).mul_(2.0**-16).floor_()


def equalize(levels: Tensor) -> Tensor:
    """Spread each channel's histogram over all levels; a channel with too few pixels to spread stays as it is."""
    n, channels = levels.shape[:2]
    pixels = levels.reshape(n * channels, -1).long()
    histogram = _histogram(pixels)
    brightest = histogram.gather(1, pixels.amax(1, keepdim=True))
    step = (pixels.shape[1] - brightest) // 255
    below = histogram.cumsum(1) - histogram
    table = ((below + step // 2) // step.clamp(min=1)).clamp_(max=255)
    table = torch.where(step > 0, table, torch.arange(256, device=levels.device))
    return table.gather(1, pixels).to(levels.dtype).view_as(levels)


def _histogram(pixels: Tensor) -> Tensor:
    """How often each of 256 levels occurs in each row of pixels, int64 [m, p] -> int64 [m, 256].

    Not bincount: on a GPU that waits for the largest value, to know how many there are.
    """
    counts = torch.zeros(len(pixels), 256, dtype=torch.int64, device=pixels.device)
    return counts.scatter_add_(1, pixels, torch.ones_like(pixels))


def _blend(other: Tensor, levels: Tensor, factor: Tensor) -> Tensor:
    return (levels - other).mul_(factor).add_(other).clamp_(0, 255).floor_()
