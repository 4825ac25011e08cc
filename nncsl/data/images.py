"""Images as uint8 arrays, or as lazy views of a file that hold the same promise: rows by index, in any order."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np


@dataclass(frozen=True)
class ImageBatch:
    """pixels: uint8 [n, H, W, C]; sizes: int64 [n, 2] (height, width) where smaller images are padded at the bottom
    and right, or None where every image fills the array."""

    pixels: np.ndarray
    sizes: np.ndarray | None = None

    def each(self) -> list[np.ndarray]:
        """Return the images without padding: uint8 [h, w, C] each."""
        if self.sizes is None:
            return list(self.pixels)
        return [pixels[:height, :width] for pixels, (height, width) in zip(self.pixels, self.sizes, strict=True)]


class Images(Protocol):
    """A sequence of images of one data set split."""

    def __len__(self) -> int: ...

    @property
    def nbytes(self) -> int:
        """What is held in memory; a file that is read as needed counts nothing."""
        ...

    def gather(self, ids: np.ndarray) -> ImageBatch:
        """The images with these indices, in this order; repetitions are allowed."""
        ...


@dataclass(frozen=True)
class ArrayImages:
    """Images of one size: uint8 [n, H, W, C] in memory."""

    array: np.ndarray

    def __len__(self) -> int:
        return len(self.array)

    @property
    def nbytes(self) -> int:
        return self.array.nbytes

    def gather(self, ids: np.ndarray) -> ImageBatch:
        return ImageBatch(self.array[ids])


class FileBytes:
    """Bytes of a file from ``offset`` on, sliced like a flat uint8 array.

    They are read, not mapped: every page that was ever touched in a mapping counts as the process's memory.
    """

    nbytes = 0  # held in memory

    def __init__(self, path: Path, offset: int) -> None:
        from nncsl.featurebank.files import read_at  # comes with torch, which a list of data sets need not wait for

        self._file, self._offset, self._read_at = path.open("rb", buffering=0), offset, read_at

    def __getitem__(self, part: slice) -> np.ndarray:
        start, stop = int(part.start), int(part.stop)
        content = np.empty(stop - start, np.uint8)
        if self._read_at(self._file.fileno(), content.data, self._offset + start) != len(content):
            raise OSError(f"{self._file.name} ends before byte {self._offset + stop}: delete it, it is made again")
        return content


@dataclass(frozen=True)
class PackedImages:
    """Images of different sizes, one after the other.

    flat: [bytes]; offsets: int64 [n]; sizes: int64 [n, 2].
    """

    flat: np.ndarray | FileBytes
    offsets: np.ndarray
    sizes: np.ndarray
    channels: int = 3

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def nbytes(self) -> int:
        return self.offsets.nbytes + self.sizes.nbytes + self.flat.nbytes

    def gather(self, ids: np.ndarray) -> ImageBatch:
        starts, sizes, channels = self.offsets[ids], self.sizes[ids], self.channels
        each = (
            self.flat[start : start + height * width * channels].reshape(height, width, channels)
            for start, (height, width) in zip(starts, sizes, strict=True)
        )
        return padded(each, sizes, channels)


def padded(images: Iterable[np.ndarray], sizes: np.ndarray, channels: int) -> ImageBatch:
    """Return images uint8 [h, w, channels] as one batch; sizes: their heights and widths, int64 [n, 2]."""
    if not len(sizes):
        return ImageBatch(np.zeros((0, 1, 1, channels), np.uint8))
    pixels = np.zeros((len(sizes), *sizes.max(axis=0), channels), np.uint8)
    for row, (height, width), image in zip(pixels, sizes, images, strict=True):
        row[:height, :width] = image
    return ImageBatch(pixels, None if (sizes == sizes[0]).all() else sizes)
