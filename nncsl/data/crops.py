"""Crop and resize: what a kind of view cuts out of an image, in the size of the view.

A CPU takes torch's own resize of 8-bit images, once for all boxes of one shape; a GPU takes products with small
matrices of integers, once for a whole batch. Both follow Pillow: an antialiased triangle filter along the columns,
rounded to 8 bits, then the same along the rows. Both only add integers, so that neither the batch nor the number of
threads can change a bit. Their weights are rounded to about 15 and 16 bits, those of Pillow to 22: where a sum lies
close to a half, they may be one level apart.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

_BITS = 16
_ONE = float(1 << _BITS)
# Rounding moves the sum of the weights by at most half a unit per tap, and 255 times that sum must stay below 2^24.
_MAX_SCALE = 128
# Outputs per matrix product.
_BLOCK = 112


def check_extent(extent: np.ndarray, shape: np.ndarray) -> None:
    """Refuse boxes that would be shrunk more than sums of integers can hold."""
    tight = extent > _MAX_SCALE * shape
    if tight.any():
        raise ValueError(f"cannot shrink {extent[tight][0]} pixels to {shape[tight][0]}: at most {_MAX_SCALE} to one")


def resize(images: Tensor | np.ndarray, corner: np.ndarray, extent: np.ndarray, shape: np.ndarray, size: int) -> Tensor:
    """Resize a box of each image and keep the center: uint8 [n, H, W, C] -> uint8 [n, size, size, C], on the CPU.

    corner: top and left of the boxes, extent: their height and width, shape: height and width that they are resized
    to, integers [n, 2]; of the result the central square of `size` pixels is kept. torch's own operation does it, for
    all boxes at once that have one extent and become one shape.
    """
    check_extent(extent, shape)
    pixels = images.cpu().numpy() if isinstance(images, Tensor) else images
    n, channels = len(pixels), pixels.shape[3]
    squares = torch.empty(n, size, size, channels, dtype=torch.uint8)
    alike: dict[tuple[int, ...], list[int]] = {}
    for row, shapes in enumerate(np.concatenate([extent, shape], axis=1).tolist()):
        alike.setdefault(tuple(shapes), []).append(row)
    corners = corner.tolist()
    for (height, width, *wanted), rows in alike.items():
        boxes = np.empty((len(rows), height, width, channels), dtype=np.uint8)
        for at, row in enumerate(rows):
            top, left = corners[row]
            boxes[at] = pixels[row, top : top + height, left : left + width]
        planes = F.interpolate(torch.from_numpy(boxes).permute(0, 3, 1, 2), wanted, mode="bilinear", antialias=True)
        if wanted != [size, size]:
            top, left = (round((side - size) / 2) for side in wanted)
            planes = planes[:, :, top : top + size, left : left + size]
        squares.numpy()[np.array(rows)] = planes.permute(0, 2, 3, 1).numpy()  # far faster than index_copy_
    return squares


@dataclass(frozen=True)
class Taps:
    """Which inputs make an output along one axis: first [n, out] indices, weights [n, out, taps] integers (of 2^16)."""

    first: np.ndarray
    weights: np.ndarray

    def span(self) -> tuple[int, int]:
        """First input that any output needs, and the one after the last."""
        last = ((self.weights > 0) * np.arange(1, self.weights.shape[-1] + 1)).max(axis=-1)
        return int(self.first.min()), int((self.first + last).max())

    def shifted(self, start: int) -> "Taps":
        """The same on inputs of which the first `start` were cut off."""
        return Taps(self.first - start, self.weights)


def triangle_taps(start: np.ndarray, length: np.ndarray, resized: np.ndarray, size: int) -> Taps:
    """Taps that resize intervals [start, start + length) of an axis and keep the central `size` pixels; integers [n].

    Inputs outside of the interval weigh nothing.
    """
    scale = (length / resized)[:, None]
    reach = np.maximum(scale, 1.0)
    center = (np.arange(size) + _center(resized, size)[:, None] + 0.5) * scale
    count = np.minimum(np.floor(2 * reach).astype(np.int64) + 2, length[:, None])
    first = np.floor(center - reach + 0.5).astype(np.int64)
    first = np.clip(first, 0, length[:, None] - count)
    tap = np.arange(count.max(initial=0))
    distance = np.abs((first + 0.5 - center)[:, :, None] + tap) / reach[:, :, None]
    weights = np.maximum(1.0 - distance, 0.0) * (tap < count[:, :, None])
    return Taps(first + start[:, None], to_integers(weights))


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


class Products(NamedTuple):
    """What the host prepares of a resize: pixels, uint8 [n, H, W, C], and the matrices along both axes.

    Arrays, or the same as tensors where the products are to be made.
    """

    pixels: Any
    rows: tuple[Matrix, ...]
    columns: tuple[Matrix, ...]


def prepare(
    images: Tensor | np.ndarray, corner: np.ndarray, extent: np.ndarray, shape: np.ndarray, size: int
) -> Products:
    """Return what :func:`sums` needs to resize as :func:`resize` does: few operations for a batch of any shapes.

    An output row is a weighted sum of input rows, then the same along columns. The weights are 16-bit integers and
    pixels 8-bit ones, so each sum is an integer below 2^24, which float32 holds exactly, whatever the order of
    additions. Only the rectangle that some tap reaches is read from the images.
    """
    check_extent(extent, shape)
    rows, columns = (triangle_taps(corner[:, axis], extent[:, axis], shape[:, axis], size) for axis in (0, 1))
    (top, bottom), (left, right) = rows.span(), columns.span()
    return Products(images[:, top:bottom, left:right], _matrices(rows.shifted(top)), _matrices(columns.shifted(left)))


def sums(prepared: Products) -> Tensor:
    """Return integer levels in float32 [n, C, size, size] from what was prepared, as tensors."""
    pixels, rows, columns = prepared
    here = pixels.to(rows[0].weights.device)  # where it is already, unless images came as tensors from elsewhere
    levels = here.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format)
    return _weighted_sums(levels, rows, columns)


def _center(resized: np.ndarray, size: int) -> np.ndarray:
    """Return where the central `size` pixels begin, as torchvision rounds it."""
    return np.rint((resized - size) / 2).astype(np.int64)


def _weighted_sums(pixels: Tensor, rows: tuple[Matrix, ...], columns: tuple[Matrix, ...]) -> Tensor:
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


def _matrices(taps: Taps) -> tuple[Matrix, ...]:
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
    """Round sums whose weights were of 2^16 to levels, in place."""
    return sums.add_(_ONE / 2).mul_(1 / _ONE).floor_()


def to_integers(weights: np.ndarray) -> np.ndarray:
    """Weights [..., taps] >= 0 scaled to sum to about 2^16 and rounded; float32 because the product is.

    Rounding to integers first makes their sum exact, hence independent of the order in which numpy adds.
    """
    weights = np.rint(weights * 2.0**32)
    return np.rint(weights * (_ONE / weights.sum(axis=-1, keepdims=True))).astype(np.float32)
