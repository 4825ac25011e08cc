"""From an encoded image to 8-bit pixels: training and test data and images to predict are read by these same lines."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from nncsl.data.user_files import as_text
from nncsl.errors import DataError
from nncsl.files import open_regular, reason

MAX_PIXELS = 50_000_000  # a photograph of 8,000 x 6,000; three bytes for each are held while it is decoded
_BYTES_PER_PIXEL = 8  # four channels of 16 bits: no file needs more
_LONGEST = 2.0  # panoramas are cut to this aspect ratio around their middle, so that one does not pad a whole batch
_SIDEWAYS = 5  # from this value of its EXIF tag on, a photograph is stored on its side
_ORIENTATION = 0x0112


class Encoded(Protocol):
    """An image as it lies somewhere. ``str`` says where, for people."""

    def open(self) -> BinaryIO:
        """Return its bytes as a file that can be read and sought in."""
        ...

    def stamp(self) -> bytes:
        """Return what changes when the image does, without reading it."""
        ...


class UnreadableImage(DataError):
    """An image that can't be decoded, and the reason."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"{place} can't be decoded ({reason}); replace or remove it")
        self.reason = reason


def measure(file: Path | Encoded, max_pixels: int = MAX_PIXELS) -> tuple[int, int]:
    """Return width and height of the upright image; reads the header only."""
    with _opened(file, max_pixels) as image:
        width, height = image.size
        sideways = image.format != "PNG" and image.getexif().get(_ORIENTATION, 1) >= _SIDEWAYS
    return (height, width) if sideways else (width, height)


def read(file: Path | Encoded, channels: int = 3, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Return the upright image in 8 bits: RGB, or gray where there is one channel."""
    with _opened(file, max_pixels) as image:
        if image.format == "PNG":
            image.verify()  # Pillow decodes a PNG with a destroyed tail without a word
        else:
            return eight_bit(image, channels)
    with _opened(file, max_pixels) as image:  # what was verified can't be decoded any more
        return eight_bit(image, channels)


def eight_bit(image: Image.Image, channels: int = 3) -> Image.Image:
    """Return an opened image upright and in 8 bits: RGB, or gray where there is one channel.

    Transparency is left out, palettes are resolved. 16-bit gray is scaled: Pillow alone would cut all of it to white.
    """
    upright = image if image.format == "PNG" else ImageOps.exif_transpose(image)
    if upright.mode.startswith("I;16") or (upright.mode == "I" and image.format == "PNG"):
        upright = Image.fromarray(((np.asarray(upright).astype(np.int64) + 128) // 257).astype(np.uint8))
    return upright.convert("RGB" if channels == 3 else "L")


def fitted_size(width: int, height: int, short_side: int) -> tuple[int, int]:
    """Return height and width of an image whose short side becomes ``short_side``, cut where it is very long."""
    scale = short_side / min(width, height)
    longest = round(short_side * _LONGEST)
    return min(round(height * scale), longest), min(round(width * scale), longest)


def fitted(image: Image.Image, height: int, width: int) -> np.ndarray:
    """Return the image resized to cover this size and cut around its middle: uint8 [height, width, C]."""
    pixels = np.asarray(ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR))
    return pixels if pixels.ndim == 3 else pixels[:, :, None]


@contextmanager
def _opened(file: Path | Encoded, max_pixels: int) -> Iterator[Image.Image]:
    """Give the image behind a file's header; whatever goes wrong with it is the file's fault."""
    try:
        with open_regular(file) if isinstance(file, Path) else file.open() as content:
            size = content.seek(0, os.SEEK_END)
            if size > _BYTES_PER_PIXEL * max_pixels:
                raise ValueError(f"{size} bytes, more than an image of max_pixels={max_pixels} has")
            content.seek(0)
            with Image.open(content) as image:
                pixels = image.width * image.height
                if pixels > max_pixels:
                    raise ValueError(f"{image.width} x {image.height} pixels; --set max_pixels={pixels} allows that")
                yield image
    except Exception as error:
        place = as_text(file) if isinstance(file, Path) else str(file)
        raise UnreadableImage(place, _reason(error)) from error


def _reason(error: Exception) -> str:
    """Why, without the name of an object in memory that Pillow puts into its message."""
    return "it is no image that Pillow knows" if isinstance(error, UnidentifiedImageError) else reason(error)
