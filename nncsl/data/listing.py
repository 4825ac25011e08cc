"""Images before they are decoded, with their classes: what a folder, a table or an arrow file lists."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from nncsl.data.decoding import Encoded
from nncsl.data.rng import permutation, stream_key
from nncsl.data.user_files import as_text, file_times
from nncsl.errors import DataError
from nncsl.files import open_regular

NO_CLASS = -1  # the label of an image that belongs to nobody knows which class


class ImageFile(NamedTuple):
    """An image in a file of its own; name: "class/file", as published lists may call it."""

    path: Path
    name: str

    def __str__(self) -> str:
        return as_text(self.path)

    def open(self) -> BinaryIO:
        return open_regular(self.path)

    def stamp(self) -> bytes:
        try:
            return os.fsencode(f"{self.path.parent.name}/{self.path.name}") + file_times(self.path)
        except OSError:
            return b"gone"  # the decoder says so


@dataclass(frozen=True)
class Listing:
    """Images and their classes: labels int64 [n], values index class_names or are NO_CLASS."""

    images: tuple[Encoded, ...]
    labels: np.ndarray
    class_names: tuple[str, ...]

    def part(self, keep: np.ndarray) -> "Listing":
        """Return those of the chosen rows (bool or int)."""
        rows = np.flatnonzero(keep) if keep.dtype == bool else keep
        return Listing(tuple(self.images[row] for row in rows), self.labels[rows], self.class_names)

    def plus(self, images: tuple[Encoded, ...]) -> "Listing":
        """Return all of these and more images, of no known class."""
        labels = np.concatenate([self.labels, np.full(len(images), NO_CLASS)])
        return Listing(self.images + images, labels, self.class_names)


@dataclass(frozen=True)
class Found:
    """What lies at a place: images to train and to test, and how many other files, by their kind.

    by_class: images stand class by class, and that is how published indices count them.
    """

    train: Listing
    test: Listing
    ignored: Mapping[str, int] = field(default_factory=dict)
    by_class: bool = False


def split_by_ratio(whole: Listing, test_fraction: float, first_label: int = 0) -> tuple[Listing, Listing]:
    """Return training and test images, the same on every machine: by the number of images in a class, not the seed.

    first_label: what the first class is numbered among all that a run knows.
    """
    test = np.zeros(len(whole.labels), dtype=bool)
    for label, name in enumerate(whole.class_names):
        members = np.flatnonzero(whole.labels == label)
        count = max(1, round(test_fraction * len(members)))
        if count >= len(members):
            raise DataError(
                f"class {name!r} has {len(members)} images: too few to keep {count} for the test "
                f"(test_fraction={test_fraction})"
            )
        test[members[permutation(stream_key("folder", "test", first_label + label), len(members))[:count]]] = True
    return whole.part(~test), whole.part(test)


def published_order(listing: Listing, readable: np.ndarray, *, by_class: bool) -> np.ndarray:
    """Return which of the readable images [m] each published index means: int64 [n], NO_CLASS for an unreadable one.

    Indices count all images as they are listed; by_class: class by class in the order of the classes' names, as
    torchvision's ImageFolder does.
    """
    place = np.full(len(listing.labels), NO_CLASS)
    place[readable] = np.arange(len(readable))
    if not by_class:
        return place
    rank = np.argsort(np.argsort(np.array(listing.class_names)))
    return place[np.argsort(np.append(rank, len(rank))[listing.labels], kind="stable")]  # those of no class are last
