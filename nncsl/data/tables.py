"""A CSV file of images and their labels: path,label and perhaps split, in that order or by a header."""

import csv
import io
from pathlib import Path

import numpy as np

from nncsl.data.listing import NO_CLASS, Found, ImageFile, Listing, split_by_ratio
from nncsl.data.user_files import as_text, read_text
from nncsl.errors import DataError
from nncsl.files import reason

_COLUMNS = ("path", "label", "split")
_TEST = ("test", "val", "validation")


def find(path: Path, classes: tuple[str, ...] | None, test_fraction: float) -> Found:
    """Return the images that a CSV file lists; an empty label is an image of no class.

    Relative paths begin at the file's own folder. classes: those to use, in this order; None takes all of them, numbers
    by value and other names by letter. Without a column "split" a part of each class is kept for the test.
    """
    rows = _rows(path)
    named = {label for _, label, _ in rows if label}
    if not named:
        raise DataError(f"{as_text(path)}: no image has a label; expected lines of path,label")
    missing = [name for name in classes or () if name not in named]
    if missing:
        raise DataError(f"{as_text(path)} has no image with the label {missing[0]!r}, which the class list names")
    every = classes or tuple(sorted(named, key=lambda name: (not name.isdecimal(), len(name) * name.isdecimal(), name)))
    place = {name: label for label, name in enumerate(every)} | {"": NO_CLASS}
    kept = [row for row in rows if row[1] in place]
    images = tuple(ImageFile(path.parent / file, file) for file, _, _ in kept)
    whole = Listing(images, np.array([place[label] for _, label, _ in kept], np.int64), every)
    if not any(split for _, _, split in kept):
        return Found(*split_by_ratio(whole, test_fraction))
    test = np.array([split in _TEST for _, _, split in kept])
    for part, name in ((whole.part(~test), "train"), (whole.part(test), "test")):
        absent = np.setdiff1d(np.arange(len(every)), part.labels)
        if len(absent):
            raise DataError(f"{as_text(path)}: class {every[absent[0]]!r} has no image in the split {name!r}")
    return Found(whole.part(~test), whole.part(test & (whole.labels != NO_CLASS)))


def _rows(path: Path) -> list[tuple[str, str, str]]:
    """Path, label and split of each line; "" for what it does not say."""
    try:
        lines = list(csv.reader(io.StringIO(read_text(path), newline=""), strict=True))
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"{as_text(path)} can't be read as a CSV file of path,label ({reason(error)})") from error
    header = [cell.strip().lower() for cell in lines[0]] if lines else []
    columns = [header.index(name) if name in header else -1 for name in _COLUMNS]
    if min(columns[:2]) < 0:  # no header
        columns, first = [0, 1, 2], 0
    else:
        first = 1
    rows = []
    for number, line in enumerate(lines[first:], first + 1):
        cells = [line[column].strip() if 0 <= column < len(line) else "" for column in columns]
        if not any(line):
            continue
        if not cells[0] or len(line) < 2:
            raise DataError(f"{as_text(path)}, line {number}: expected path,label, got {','.join(line)[:80]!r}")
        if cells[2] not in ("", "train", *_TEST):
            raise DataError(f"{as_text(path)}, line {number}: split is {cells[2]!r}; expected train or test")
        rows.append((cells[0], cells[1], cells[2]))
    return rows
