"""Image files of every mode become the 8-bit pixels that a person would expect."""

import numpy as np
import pytest
from PIL import Image

from nncsl.data import decoding
from nncsl.errors import DataError

RAMP = np.arange(0, 256, 4, dtype=np.uint8).reshape(8, 8)


def gray(file):
    return np.asarray(decoding.read(file, channels=1))


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_sixteen_bits_are_scaled(tmp_path, suffix):
    file = tmp_path / f"deep.{suffix}"
    Image.fromarray(RAMP.astype(np.uint16) * 257).save(file)
    assert np.array_equal(gray(file), RAMP)
    assert np.array_equal(np.asarray(decoding.read(file)), RAMP[:, :, None].repeat(3, axis=2))


@pytest.mark.parametrize("mode", ["L", "P", "RGB", "RGBA", "LA"])
def test_every_mode_of_the_same_image_gives_the_same_pixels(tmp_path, mode):
    file = tmp_path / "image.png"
    Image.fromarray(RAMP).convert(mode).save(file)
    assert np.array_equal(gray(file), RAMP)


def test_photographs_stand_upright(tmp_path):
    wide = Image.fromarray(np.pad(RAMP, ((0, 0), (0, 8)))).convert("RGB")
    exif = Image.Exif()
    exif[0x0112] = 6  # turn clockwise to see it
    wide.save(tmp_path / "photo.jpg", exif=exif, quality=100)
    assert decoding.measure(tmp_path / "photo.jpg") == (8, 16)
    turned = gray(tmp_path / "photo.jpg").astype(int)
    assert turned.shape == (16, 8) and np.abs(turned[:8] - np.rot90(RAMP, -1)).max() < 12


def test_what_can_not_be_decoded_is_named(tmp_path):
    file = tmp_path / "cut.png"
    Image.fromarray(RAMP).save(file)
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"cut\.png can't be decoded"):
        decoding.read(file)
