"""Crop, flip, resize and blur as products with small matrices of integers.

Every one of them is linear and separable: an output row is a weighted sum of input rows, then the same along columns.
The weights are 16-bit integers and pixels 8-bit ones, so each sum is an integer below 2^24, which float32 holds
exactly. A matrix product may therefore add in any order, in any blocking, on any number of threads or any device, and
still return the same bits: this is what makes a view independent of the batch it is rendered in. The result follows
Pillow (antialiased triangle filter, columns first, rounded to 8 bits after each pass), whose weights have 22 bits.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nncsl.transfer import ship

_BITS = 16
_ONE = float(1 << _BITS)
# Rounding moves the sum of the weights by at most half a unit per tap, and 255 times that sum must stay below 2^24.
_MAX_SCALE = 128
# Outputs per matrix product.
_BLOCK = 112
# On a CPU, the largest window of pixels that a batch of crops shares: with larger images each takes its own.
_SHARED_WINDOW = 64 * 64


@dataclass(frozen=True)
class Taps:
    """Which inputs make an output along one axis: first [n, out] indices, weights [n, out, taps] integers (of 2^16)."""

    first: np.ndarray
    weights: np.ndarray

    def span(self) -> tuple[int, int]:
        """First input that any output needs, and the one after the last."""
        last = ((self.weights > 0) * np.arange(1, self.weights.shape[-1] + 1)).max(axis=-1)
        return int(self.first.min()), int((self.first + last).max())

    def __getitem__(self, rows: slice) -> "Taps":
        return Taps(self.first[rows], self.weights[rows])

    def shifted(self, start: int) -> "Taps":
        """The same on inputs of which the first `start` were cut off."""
        return Taps(self.first - start, self.weights)

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


def gaussian_taps(sigma: np.ndarray, size: int) -> Taps:
    """Taps that blur an axis of `size` pixels, mirrored at its ends, by a Gaussian cut at four sigma; sigma [n] > 0."""
    width = sigma[:, None]
    radius = min(int(np.ceil(4.0 * width.max())), size - 1)
    steps = np.arange(-radius, radius + 1)
    kernel = _to_integers(np.exp(-0.5 * np.square(steps / width)) * (np.abs(steps) <= 4.0 * width))
    output = np.arange(size)
    count = min(2 * radius + 1, size)
    first = np.clip(output - radius, 0, size - count)
    weights = np.zeros((len(sigma), size, count), dtype=np.float32)
    for tap, step in enumerate(steps):
        mirrored = size - 1 - np.abs(size - 1 - np.abs(output + step))
        weights[:, output, mirrored - first] += kernel[:, tap, None]
    return Taps(np.broadcast_to(first, (len(sigma), size)), weights)


class Matrix(NamedTuple):
    """Dense matrices of a block of outputs, one per image, as the host prepares them: [n, outputs, stop - start].

    index: int64 [n, outputs], where each output's first tap lies in all of them, flat and ``extent`` wide; weights:
    [n, outputs, taps]; start, stop: the range of inputs that they weigh.
    """

    index: Any
    weights: Any
    start: int
    stop: int
    extent: int


class Resampling(NamedTuple):
    """What the host prepares of a resampling: pixels, uint8 [n, H, W, C], and the matrices along both axes.

    Arrays, or the same as tensors where the sums are to be made.
    """

    pixels: Any
    rows: tuple[Matrix, ...]
    columns: tuple[Matrix, ...]


def prepare(images: Tensor | np.ndarray, rows: Taps, columns: Taps, *, on_cpu: bool) -> tuple[Resampling, ...]:
    """Return uint8 images [n, H, W, C] and taps as `sums` takes them; only what some tap reaches is read.

    on_cpu: whether the sums are made there, where large windows are taken image by image.
    """
    top, bottom = rows.span()
    left, right = columns.span()
    if on_cpu and len(images) > 1 and (bottom - top) * (right - left) > _SHARED_WINDOW:
        singles = [slice(i, i + 1) for i in range(len(images))]
        return tuple(part for i in singles for part in prepare(images[i], rows[i], columns[i], on_cpu=True))
    return (
        Resampling(images[:, top:bottom, left:right], matrices(rows.shifted(top)), matrices(columns.shifted(left))),
    )


def resample(images: Tensor | np.ndarray, rows: Taps, columns: Taps, device: torch.device) -> Tensor:
    """uint8 images [n, H, W, C] -> integer levels in float32 [n, C, rows' outputs, columns' outputs] on `device`."""
    return sums(ship(prepare(images, rows, columns, on_cpu=device.type == "cpu"), device))


def blur(levels: Tensor, sigma: np.ndarray) -> Tensor:
    """Gaussian blur of levels [n, C, size, size]; sigma [n] > 0 in pixels."""
    taps = ship(matrices(gaussian_taps(sigma, levels.shape[-1])), levels.device)
    return weighted_sums(levels, taps, taps)


def sums(prepared: tuple[Resampling, ...]) -> Tensor:
    """Return integer levels in float32 [n, C, rows' outputs, columns' outputs] from what was prepared, as tensors."""
    parts = []
    for pixels, rows, columns in prepared:
        here = pixels.to(rows[0].weights.device)  # where it is already, unless images came as tensors from elsewhere
        levels = here.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format)
        parts.append(weighted_sums(levels, rows, columns))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def weighted_sums(pixels: Tensor, rows: tuple[Matrix, ...], columns: tuple[Matrix, ...]) -> Tensor:
    """Both passes over integer levels [n, C, H, W]: columns first, each rounded to levels."""
    n, channels, height, _ = pixels.shape
    # Without autocast, which would hand back sums of half the bits.
    with torch.autocast(pixels.device.type, enabled=False):
        narrow = []
        for block in columns:
            window = pixels[..., block.start : block.stop].reshape(n, channels * height, block.stop - block.start)
            narrow.append(_joined([window @ half.transpose(1, 2) for half in _halves(_dense(block))]))
        levels = _to_levels(torch.cat(narrow, dim=2)).view(n, channels, height, -1)
        low = []
        for block in rows:
            window = levels[:, :, block.start : block.stop]
            low.append(_joined([half[:, None] @ window for half in _halves(_dense(block))]))
        return _to_levels(torch.cat(low, dim=2))


def matrices(taps: Taps) -> tuple[Matrix, ...]:
    """Return the matrices of taps, block by block.

    The matrix of a whole axis is a narrow band; blocks of outputs leave most of its zeros out.
    """
    found = []
    for at in range(0, taps.first.shape[1], _BLOCK):
        block = Taps(taps.first[:, at : at + _BLOCK], taps.weights[:, at : at + _BLOCK])
        start, stop = block.span()
        n, size, count = block.weights.shape
        # Taps past the end weigh nothing, but need a place: the matrix is built wider, then cut.
        extent = stop - start + count
        index = (np.arange(n * size) * extent - start).reshape(n, size) + block.first
        found.append(Matrix(index, block.weights, start, stop, extent))
    return tuple(found)


def _dense(block: Matrix) -> Tensor:
    """Return the matrices [n, outputs, stop - start]; index and weights are tensors."""
    n, size, count = block.weights.shape
    dense = block.weights.new_zeros(n * size * block.extent)
    taps = torch.arange(count, device=dense.device)
    dense[(block.index[:, :, None] + taps).flatten()] = block.weights.flatten()
    return dense.view(n, size, block.extent)[:, :, : block.stop - block.start]


def _halves(weights: Tensor) -> list[Tensor]:
    """The weights, in upper and lower bytes where a product may round its factors to bfloat16 or TF32.

    Both formats hold a byte exactly, and pixels are bytes already, so that the sums stay exact on such hardware.
    """
    if _keeps_float32(weights.device):
        return [weights]
    upper = weights.mul(1 / 256).floor_()
    return [upper, weights - upper * 256]


def _joined(sums: list[Tensor]) -> Tensor:
    """One sum from those of the halves."""
    return sums[0] if len(sums) == 1 else sums[0].mul_(256).add_(sums[1])


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
