"""Published lists of labeled images: indices as CIFAR's splits have them, or names as ImageNet's have them."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from nncsl.data.listing import NO_CLASS
from nncsl.data.user_files import read_text
from nncsl.errors import ConfigError
from nncsl.files import reason

_AMBIGUOUS = -1


class Published(NamedTuple):
    """What lists may call the training images: names "class/file" of each, or none, and what an index means.

    set_aside: the same names of test images.
    """

    names: Sequence[str] = ()
    by_index: np.ndarray | None = None
    set_aside: Sequence[str] = ()


def read(
    path: Path, labels: np.ndarray, classes: Sequence[int], class_names: Sequence[str], published: Published
) -> np.ndarray:
    """Return which training images a file names, one in a line: int64 [l], sorted.

    labels: [n] classes of all training images; classes: those that need a label, of all that class_names has.

    Names of classes that the data set does not have are left out, with a note: lists for all of ImageNet serve for a
    part of it.
    """
    lines = _lines(path)
    if all(line.isdecimal() for line in lines):
        by_index = np.arange(len(labels)) if published.by_index is None else published.by_index
        found = [_index(path, number, line, by_index) for number, line in enumerate(lines, 1)]
        if max(found) < len(class_names) < len(found):
            raise ConfigError(
                f"{path}: these are {len(found)} class numbers, not images; give the file of indices instead, which in "
                f"the NNCSL authors' folders has the same name without _cls"
            )
        indices = by_index[found]
    else:
        indices = _by_name(path, lines, labels, class_names, published)
    distinct = np.unique(indices)
    if (labels[distinct] == NO_CLASS).any():
        raise ConfigError(f"{path}: {(labels[distinct] == NO_CLASS).sum()} of its images have no class; remove them")
    if len(distinct) < len(indices):
        raise ConfigError(f"{path}: {len(indices) - len(distinct)} images stand in it twice; remove the repetitions")
    absent = np.setdiff1d(classes, labels[distinct])
    if len(absent):
        raise ConfigError(f"{path}: no image belongs to class {class_names[absent[0]]!r}; every class needs a label")
    return distinct


def _lines(path: Path) -> list[str]:
    try:
        lines = [line.strip() for line in read_text(path).splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"labels={str(path)!r}: the file can't be read ({reason(error)}); expected a training image in each line, "
            "by its index or its name"
        ) from error
    if not lines:
        raise ConfigError(f"labels={str(path)!r}: the file is empty; expected one training image in a line")
    return lines


def _index(path: Path, number: int, line: str, by_index: np.ndarray) -> int:
    if len(line) > 18 or int(line) >= len(by_index):
        raise ConfigError(
            f"{path}, line {number}: {line[:40]!r} is not the index of one of {len(by_index)} training images"
        )
    if by_index[int(line)] == NO_CLASS:
        raise ConfigError(f"{path}, line {number}: image {line} can't be read and was left out; remove the line")
    return int(line)


def _by_name(
    path: Path, lines: Sequence[str], labels: np.ndarray, class_names: Sequence[str], published: Published
) -> np.ndarray:
    known: dict[str, int] = {}
    for place, names in enumerate(_spellings(labels, class_names, published.names)):
        for name in names:
            known[name] = place if known.get(name, place) == place else _AMBIGUOUS
    aside = {name for names in map(_of_file, published.set_aside) for name in names}
    classes = class_names if published.names else [*class_names, *map(str, range(len(class_names)))]
    prefixes = tuple(f"{name}{mark}" for name in classes for mark in "_/")
    found: list[int] = []
    left_out = dict.fromkeys(("of classes that this data set does not have", "test images"), 0)
    for number, line in enumerate(lines, 1):
        image = known.get(line)
        if image is None and line in aside:
            left_out["test images"] += 1
        elif image is None and ("_" in line or "/" in line) and not line.startswith(prefixes):
            left_out["of classes that this data set does not have"] += 1
        elif image is None or image == _AMBIGUOUS:
            what = "several training images have" if image == _AMBIGUOUS else "no training image has"
            raise ConfigError(
                f"{path}, line {number}: {what} the name {line[:80]!r}; expected e.g. {next(iter(known))!r}"
            )
        else:
            found.append(image)
    if not found:
        raise ConfigError(
            f"{path}: none of its {len(lines)} names is that of a training image, first {lines[0][:80]!r}; expected "
            f"e.g. {next(iter(known))!r}"
        )
    for what, count in left_out.items():
        if count:
            print(f"nncsl: note: {path}: {count} of its {len(lines)} names are {what}: left out", file=sys.stderr)
    return np.array(found, np.int64)


def _of_file(name: str) -> tuple[str, str, str]:
    folder, file = PurePosixPath(name).parent.name, PurePosixPath(name).name
    return file, name, f"{folder}_{file}"


def _spellings(labels: np.ndarray, class_names: Sequence[str], image_names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Give the names that each training image goes by.

    A file has its own, and that with its class before it; an image without a file has its class, by name or number, and
    its place among the images of that class.
    """
    if image_names:
        yield from map(_of_file, image_names)
        return
    counts = np.zeros(len(class_names), np.int64)
    for label in labels:
        if label == NO_CLASS:
            yield ()
            continue
        place = counts[label]
        counts[label] += 1
        yield f"{class_names[label]}_{place}", f"{label}_{place}"
