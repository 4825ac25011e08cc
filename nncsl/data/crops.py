"""Crop, flip, resize and blur as products with small matrices of integers.

Every one of them is linear and separable: an output row is a weighted sum of input rows, then the same along columns.
The weights are 16-bit integers and pixels 8-bit ones, so each sum is an integer below 2^24, which float32 holds
exactly. A matrix product may therefore add in any order, in any blocking, on any number of threads or any device, and
still return the same bits: this is what makes a view independent of the batch it is rendered in. The result follows
Pillow (antialiased triangle filter, columns first, rounded to 8 bits after each pass), whose weights have 22 bits.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

_BITS = 16
_ONE = float(1 << _BITS)
# Rounding moves the sum of the weights by at most half a unit per tap, and 255 times that sum must stay below 2^24.
_MAX_SCALE = 128


@dataclass(frozen=True)
class Taps:
    """Which inputs make an output along one axis: first [n, out] indices, weights [n, out, taps] integers (of 2^16)."""

    first: np.ndarray
    weights: np.ndarray

    def span(self) -> tuple[int, int]:
        """First input that any output needs, and the one after the last."""
        last = ((self.weights > 0) * np.arange(1, self.weights.shape[-1] + 1)).max(axis=-1)
        return int(self.first.min()), int((self.first + last).max())

    def reversed(self, rows: np.ndarray) -> "Taps":
        """The same with the outputs in reverse order in the given rows (bool [n]): a flip."""
        return Taps(
            np.where(rows[:, None], self.first[:, ::-1], self.first),
            np.where(rows[:, None, None], self.weights[:, ::-1], self.weights),
        )


def triangle_taps(
    start: np.ndarray,
    length: np.ndarray,
    size: int,
    *,
    scale: np.ndarray | None = None,
    offset: np.ndarray | int = 0,
) -> Taps:
    """Taps that resize the interval [start, start + length) of an axis to `size` pixels; start, length: integers [n].

    scale: input pixels per output pixel [n], by default length / size; offset: the first output pixel wanted, so that
    a resize followed by a crop is one product. Inputs outside of the interval weigh nothing.
    """
    scale = length / size if scale is None else scale
    reach = np.maximum(scale, 1.0)[:, None]
    if (reach > _MAX_SCALE).any():
        raise ValueError(f"cannot shrink {length[reach.argmax()]} pixels to {size}: at most {_MAX_SCALE} to one")
    center = (np.arange(size) + np.reshape(offset, (-1, 1)) + 0.5) * scale[:, None]
    count = np.minimum(np.floor(2 * reach).astype(np.int64) + 2, length[:, None])
    first = np.floor(center - reach + 0.5).astype(np.int64)
    first = np.clip(first, 0, length[:, None] - count)
    tap = np.arange(count.max(initial=0))
    distance = np.abs((first + 0.5 - center)[:, :, None] + tap) / reach[:, :, None]
    weights = np.maximum(1.0 - distance, 0.0) * (tap < count[:, :, None])
    return Taps(first + start[:, None], _to_integers(weights))


def resample(images: Tensor | np.ndarray, rows: Taps, columns: Taps, device: torch.device) -> Tensor:
    """uint8 images [n, H, W, C] -> integer levels in float32 [n, C, rows' outputs, columns' outputs] on `device`.

    Only the rectangle that some tap reaches is read from the images.
    """
    top, bottom = rows.span()
    left, right = columns.span()
    window = images[:, top:bottom, left:right]
    window = window if isinstance(window, Tensor) else torch.tensor(window)
    pixels = window.to(device).permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format)
    return _product(pixels, _matrices(rows, top, bottom, device), _matrices(columns, left, right, device))


def blur(levels: Tensor, sigma: np.ndarray) -> Tensor:
    """Gaussian blur of levels [n, C, size, size], cut at four sigma and mirrored at the borders; sigma [n] > 0."""
    size = levels.shape[-1]
    width = sigma[:, None]
    radius = min(int(np.ceil(4.0 * width.max())), size - 1)
    steps = np.arange(-radius, radius + 1)
    weights = _to_integers(np.exp(-0.5 * np.square(steps / width)) * (np.abs(steps) <= 4.0 * width))
    matrices = np.zeros((len(width), size, size), dtype=np.float32)
    output = np.arange(size)
    for tap, step in enumerate(steps):
        matrices[:, output, size - 1 - np.abs(size - 1 - np.abs(output + step))] += weights[:, tap, None]
    matrix = torch.from_numpy(matrices).to(levels.device)
    return _product(levels, matrix, matrix)


def _matrices(taps: Taps, start: int, stop: int, device: torch.device) -> Tensor:
    """Dense [n, out, stop - start]: column j weighs input start + j."""
    n, size, count = taps.weights.shape
    # Taps past the end weigh nothing, but need a place: the matrix is built wider, then cut.
    extent = stop - start + count
    dense = torch.zeros(n * size * extent, dtype=torch.float32, device=device)
    index = torch.from_numpy((np.arange(n * size) * extent - start).reshape(n, size) + taps.first).to(device)
    dense[(index[:, :, None] + torch.arange(count, device=device)).flatten()] = (
        torch.from_numpy(taps.weights).to(device).flatten()
    )
    return dense.view(n, size, extent)[:, :, : stop - start]


def _product(pixels: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """[n, C, H, W] -> [n, C, out, out] for rows [n, out, H] and columns [n, out, W]; columns first."""
    n, channels, height, width = pixels.shape
    # Without autocast, which would hand back sums of half the bits.
    with torch.autocast(pixels.device.type, enabled=False):
        columns = columns.transpose(1, 2)
        narrow = _exact_sums(columns, lambda weights: torch.bmm(pixels.reshape(n, channels * height, width), weights))
        narrow = _to_levels(narrow).view(n, channels, height, -1)
        return _to_levels(_exact_sums(rows[:, None], lambda weights: torch.matmul(weights, narrow)))


def _exact_sums(weights: Tensor, multiply: Callable[[Tensor], Tensor]) -> Tensor:
    """multiply(weights), as exact where the hardware may round the factors of a product to bfloat16 or TF32.

    Both keep 8 bits or more, as many as a pixel has: there, upper and lower half of each weight are multiplied apart.
    """
    if _keeps_float32(weights.device):
        return multiply(weights)
    upper = weights.mul(1 / 256).floor_()
    return multiply(upper).mul_(256).add_(multiply(weights - upper * 256))


def _keeps_float32(device: torch.device) -> bool:
    matmul = getattr(torch.backends.mkldnn, "matmul", None)  # since torch 2.9
    return (
        device.type == "cpu"
        and torch.get_float32_matmul_precision() == "highest"
        and getattr(matmul, "fp32_precision", "none") in ("none", "ieee")
    )


def _to_levels(sums: Tensor) -> Tensor:
    return sums.add_(_ONE / 2).mul_(1 / _ONE).floor_()


def _to_integers(weights: np.ndarray) -> np.ndarray:
    """Weights [..., taps] >= 0 scaled to sum to about 2^16 and rounded; float32 because the product is.

    Rounding to integers first makes their sum exact, hence independent of the order in which numpy adds.
    """
    weights = np.rint(weights * 2.0**32)
    return np.rint(weights * (_ONE / weights.sum(axis=-1, keepdims=True))).astype(np.float32)
