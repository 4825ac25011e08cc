"""From an image file to 8-bit pixels: training data, test data and images to predict are read by these same lines."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from nncsl.errors import DataError

_LONGEST = 2.0  # panoramas are cut to this aspect ratio around their middle, so that one does not pad a whole batch
_SIDEWAYS = 5  # from this value of its EXIF tag on, a photograph is stored on its side
_ORIENTATION = 0x0112


def measure(file: Path) -> tuple[int, int]:
    """Return width and height of the upright image; reads the header only."""
    try:
        with Image.open(file) as image:
            width, height = image.size
            sideways = image.format != "PNG" and image.getexif().get(_ORIENTATION, 1) >= _SIDEWAYS
    except Exception as error:
        raise _undecodable(file, error) from error
    return (height, width) if sideways else (width, height)


def read(file: Path, channels: int = 3) -> Image.Image:
    """Return the upright image in 8 bits: RGB, or gray where there is one channel."""
    try:
        if file.suffix.lower() == ".png":
            with Image.open(file) as image:
                image.verify()  # Pillow decodes a PNG with a destroyed tail without a word
        with Image.open(file) as image:
            return eight_bit(image, channels)
    except Exception as error:
        raise _undecodable(file, error) from error


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


def _undecodable(file: Path, error: Exception) -> DataError:
    return DataError(f"{file} can't be decoded ({error}); replace or remove it")
