"""Images as uint8 arrays, or as lazy views of a file that hold the same promise: rows by index, in any order."""

import os
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
        self._file, self._offset = path.open("rb", buffering=0), offset

    def __getitem__(self, part: slice) -> np.ndarray:
        start, stop = int(part.start), int(part.stop)
        content = np.empty(stop - start, np.uint8)
        if os.preadv(self._file.fileno(), [content.data], self._offset + start) != len(content):
            raise OSError(f"{self._file.name} ends before byte {self._offset + stop}: delete it, it is made again")
        return content


@dataclass(frozen=True)
class PackedImages:
    """RGB images of different sizes, one after the other.

    flat: [bytes]; offsets: int64 [n]; sizes: int64 [n, 2].
    """

    flat: np.ndarray | FileBytes
    offsets: np.ndarray
    sizes: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def nbytes(self) -> int:
        return self.offsets.nbytes + self.sizes.nbytes + self.flat.nbytes

    def gather(self, ids: np.ndarray) -> ImageBatch:
        sizes = self.sizes[ids]
        if not len(sizes):
            return ImageBatch(np.zeros((0, 1, 1, 3), np.uint8))
        pixels = np.zeros((len(sizes), *sizes.max(axis=0), 3), np.uint8)
        for row, (start, (height, width)) in enumerate(zip(self.offsets[ids], sizes, strict=True)):
            pixels[row, :height, :width] = self.flat[start : start + height * width * 3].reshape(height, width, 3)
        return ImageBatch(pixels, None if (sizes == sizes[0]).all() else sizes)
