"""Images to predict, in whatever form they come, as the pixels that evaluation would have of them."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from nncsl.config import Config
from nncsl.data import decoding
from nncsl.data.catalog import source_options
from nncsl.data.folders import SUFFIXES
from nncsl.data.sources import own_place

_LARGEST = 16  # times the side of a view: larger images of data sets that are not decoded from files are reduced first


@dataclass(frozen=True)
class Preparation:
    """How a run's data set treats image files.

    short_side: to which all images are decoded; None: they stay as they are, unless their short side exceeds ``most``.
    """

    channels: int
    short_side: int | None
    most: int
    max_pixels: int = decoding.MAX_PIXELS

    @classmethod
    def of(cls, config: Config) -> "Preparation":
        """Return that of a run: folders and ImageNet are decoded to a short side, others have a size of their own."""
        decoded = bool(own_place(config.dataset)[0]) or config.dataset == "imagenet100"
        short_side = source_options(config).short_side if decoded else None
        return cls(len(config.views.mean), short_side, _LARGEST * config.views.large.size, config.max_pixels)

    def __call__(self, image: Any) -> np.ndarray:
        """Return a path, a PIL image or a uint8 array or tensor (one image) as uint8 [h, w, channels]."""
        opened = self._open(image)
        side = self.short_side or min(self.most, *opened.size)
        return decoding.fitted(opened, *decoding.fitted_size(*opened.size, side))

    def _open(self, image: Any) -> Image.Image:
        if isinstance(image, str | Path):
            return decoding.read(Path(image), self.channels, self.max_pixels)
        if not isinstance(image, Image.Image):
            image = Image.fromarray(_array(image))
        return decoding.eight_bit(image, self.channels)


def one_by_one(images: Any) -> Iterator[Any]:
    """Give the single images of what ``predict`` takes: one image, an array or tensor of several, or a list of both."""
    if isinstance(images, np.ndarray | Tensor) and images.ndim == 4:
        yield from images
    elif isinstance(images, str | Path | Image.Image | np.ndarray | Tensor):
        yield images
    elif isinstance(images, Iterable):
        for image in images:
            yield from one_by_one(image)
    else:
        raise TypeError(f"expected paths, PIL images, uint8 arrays or tensors, got {type(images).__name__}")


def listed(paths: Iterable[Path]) -> list[Path]:
    """Return the image files of files and folders; folders are walked down, each in sorted order."""
    found: list[Path] = []
    for path in paths:
        # os.path's has an answer for names that no file system takes, too
        inside = sorted(path.rglob("*")) if os.path.isdir(path) else [path]  # noqa: PTH112
        found += [file for file in inside if file == path or (file.suffix.lower() in SUFFIXES and file.is_file())]
    return found


def _array(image: Any) -> np.ndarray:
    """uint8 [H, W] or [H, W, C] from arrays of that shape, or tensors with the channels first."""
    if isinstance(image, Tensor):
        image = image.detach().cpu().numpy()
        image = image.transpose(1, 2, 0) if image.ndim == 3 else image
        shapes = "[H, W], [C, H, W] or [n, C, H, W]"
    else:
        image, shapes = np.asarray(image), "[H, W], [H, W, C] or [n, H, W, C]"
    if image.dtype != np.uint8 or image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[2] not in (1, 3, 4)):
        raise ValueError(f"expected uint8 {shapes} with 1, 3 or 4 channels, got {image.dtype} {image.shape}")
    return np.ascontiguousarray(image[:, :, 0] if image.ndim == 3 and image.shape[2] == 1 else image)
