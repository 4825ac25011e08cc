"""Images as uint8 arrays, or as lazy views of a file that hold the same promise: rows by index, in any order."""

import hashlib
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from nncsl.errors import DataError

_AT_ONCE = 1024


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
        sizes = self.sizes[ids]
        each = (
            self.content(image).reshape(height, width, self.channels)
            for image, (height, width) in zip(ids, sizes, strict=True)
        )
        return padded(each, sizes, self.channels)

    def content(self, image: int) -> np.ndarray:
        """Return an image's bytes: uint8 [height * width * channels]."""
        start = self.offsets[image]
        return self.flat[start : start + self.sizes[image].prod() * self.channels]


@dataclass(frozen=True)
class CheckedImages(PackedImages):
    """The same, each compared with its CRC-32 when it is first read; checksums: uint32 [n]; place: the file."""

    checksums: np.ndarray = field(kw_only=True)
    place: Path = field(kw_only=True)
    _compared: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_compared", np.zeros(len(self.offsets), dtype=bool))

    @property
    def nbytes(self) -> int:
        return super().nbytes + self.checksums.nbytes + self._compared.nbytes

    def content(self, image: int) -> np.ndarray:
        found = super().content(image)
        if not self._compared[image]:
            if zlib.crc32(found.data) != self.checksums[image]:
                raise DataError(
                    f"{self.place} is corrupt at image {image}: delete it, it is decoded again at the next use"
                )
            self._compared[image] = True
        return found


def content_digest(images: Images) -> bytes:
    """Return a digest of every image's size and bytes."""
    if isinstance(images, CheckedImages):
        return hashlib.sha256(images.sizes.tobytes() + images.checksums.tobytes()).digest()
    digest = hashlib.sha256()
    for start in range(0, len(images), _AT_ONCE):
        for image in images.gather(np.arange(start, min(start + _AT_ONCE, len(images)))).each():
            digest.update(repr(image.shape).encode() + image.tobytes())
    return digest.digest()


def padded(images: Iterable[np.ndarray], sizes: np.ndarray, channels: int) -> ImageBatch:
    """Return images uint8 [h, w, channels] as one batch; sizes: their heights and widths, int64 [n, 2]."""
    if not len(sizes):
        return ImageBatch(np.zeros((0, 1, 1, channels), np.uint8))
    pixels = np.zeros((len(sizes), *sizes.max(axis=0), channels), np.uint8)
    for row, (height, width), image in zip(pixels, sizes, images, strict=True):
        row[:height, :width] = image
    return ImageBatch(pixels, None if (sizes == sizes[0]).all() else sizes)
