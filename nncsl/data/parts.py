"""Parts of data sets as one: some classes of a source, images of several places, those that are left of many."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nncsl.data.images import ImageBatch, Images, padded
from nncsl.data.sources import NO_CLASS, Source
from nncsl.errors import DataError


@dataclass(frozen=True)
class Joined:
    """Images of several places, one after the other; sizes may differ, the number of channels may not."""

    parts: tuple[Images, ...]

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    def gather(self, ids: np.ndarray) -> ImageBatch:
        starts = np.cumsum([0, *map(len, self.parts)])
        place = np.searchsorted(starts, ids, side="right") - 1
        found: dict[int, np.ndarray] = {}
        for number in np.unique(place):
            rows = np.flatnonzero(place == number)
            batch = self.parts[number].gather(ids[rows] - starts[number])
            if len(rows) == len(ids):
                return batch
            found |= zip(rows.tolist(), batch.each(), strict=True)
        images = [found[row] for row in range(len(ids))]
        if not images:
            return self.parts[-1].gather(ids)
        return padded(images, np.array([image.shape[:2] for image in images], np.int64), images[0].shape[-1])


@dataclass(frozen=True)
class Left:
    """Of ``count`` images those that are left: their numbers, ascending int64 [m], and where they are in ``images``."""

    count: int
    numbers: np.ndarray
    rows: np.ndarray
    images: Images

    def __len__(self) -> int:
        return self.count

    @property
    def nbytes(self) -> int:
        return self.images.nbytes

    def gather(self, ids: np.ndarray) -> ImageBatch:
        places = np.searchsorted(self.numbers, ids)
        gone = ids[~np.isin(ids, self.numbers)]
        if len(gone):
            raise DataError(f"training image {gone[0]} of an earlier task is gone: it is not among those remembered")
        return self.images.gather(self.rows[places])


def only(source: Source, names: Sequence[str]) -> Source:
    """Return the source with these classes alone, numbered in this order, and training images of no class."""
    if tuple(names) == source.class_names:
        return source
    left_out = -2
    number = np.full(source.num_classes + 1, left_out)
    number[[source.class_names.index(name) for name in names]] = np.arange(len(names))
    number[NO_CLASS] = NO_CLASS  # the last one
    parts: dict[str, Any] = {}
    for part, images, labels in (
        ("train", source.train, source.train_labels),
        ("test", source.test, source.test_labels),
    ):
        rows = np.flatnonzero(number[labels] != left_out)
        parts |= {part: Left(len(rows), np.arange(len(rows)), rows, images), f"{part}_labels": number[labels[rows]]}
    place = np.full(len(source.train), NO_CLASS)
    place[parts["train"].rows] = np.arange(len(parts["train"]))
    kept = tuple(source.train_names[row] for row in parts["train"].rows) if source.train_names else ()
    by_index = place if source.by_index is None else np.append(place, NO_CLASS)[source.by_index]
    return replace(source, **parts, class_names=tuple(names), train_names=kept, by_index=by_index)
