"""Images in folders, one sub-folder per class: what is there, in a stable order."""

from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np

from nncsl.data.rng import permutation, stream_key
from nncsl.errors import DataError, UserError
from nncsl.files import read_text

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"})
_TEST_FOLDERS = ("test", "val", "validation")


@dataclass(frozen=True)
class Listing:
    """Image files and their classes: labels int64 [n], values index class_names."""

    files: tuple[Path, ...]
    labels: np.ndarray
    class_names: tuple[str, ...]


def read_class_list(path: Path | None) -> tuple[str, ...]:
    """Class folder names, one per line; without a path the usual 100 ImageNet classes (Tian et al. 2020)."""
    packaged = resources.files("nncsl") / "data" / "imagenet100.txt"
    try:
        text = packaged.read_text() if path is None else read_text(path)
    except UserError as error:
        raise DataError(f"class list {error}") from error
    names = tuple(line.split()[0] for line in text.splitlines() if line.strip() and not line.startswith("#"))
    if not names or len(set(names)) < len(names):
        raise DataError(f"class list {path}: expected one class folder per line, each once, got {len(names)} lines")
    return names


def split_folders(
    root: Path, classes: tuple[str, ...] | None = None, test_fraction: float | None = None
) -> tuple[Listing, Listing]:
    """Training and test images below ``root``: by folder (train/ and test/ or val/), else by ratio within each class.

    classes: the class folders to use, in this order; None takes all of them, sorted.
    """
    if not root.is_dir():
        raise DataError(f"{root} is not a folder; expected train/ and test/ (or val/) with a sub-folder per class")
    test_root = next((root / name for name in _TEST_FOLDERS if (root / name).is_dir()), None)
    if (root / "train").is_dir() and test_root:
        train = _list(root / "train", classes)
        return train, _list(test_root, train.class_names)
    if test_fraction is None:
        raise DataError(f"{root} has no train/ and val/ folders; expected both, with a sub-folder per class")
    return _split_by_ratio(_list(root, classes), test_fraction)


def _list(root: Path, classes: tuple[str, ...] | None) -> Listing:
    if classes is None:
        classes = tuple(sorted(p.name for p in root.iterdir() if p.is_dir() and not p.name.startswith(".")))
        if not classes:
            raise DataError(f"{root} has no sub-folders; expected one per class")
    missing = [name for name in classes if not (root / name).is_dir()]
    if missing:
        raise DataError(
            f"{root} lacks {len(missing)} of {len(classes)} class folders, first {missing[0]!r}; "
            f"add them, or name the classes to use with --set class_list=FILE"
        )
    files: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        members = sorted(p for p in (root / name).iterdir() if p.suffix.lower() in SUFFIXES)
        if not members:
            raise DataError(f"class folder {root / name} has no images; add some or remove the folder")
        files += members
        labels += [label] * len(members)
    return Listing(tuple(files), np.array(labels, np.int64), classes)


def _split_by_ratio(whole: Listing, test_fraction: float) -> tuple[Listing, Listing]:
    """The same split on every machine: it depends on the number of images in a class, not on the seed."""
    test = np.zeros(len(whole.labels), dtype=bool)
    for label, name in enumerate(whole.class_names):
        members = np.flatnonzero(whole.labels == label)
        count = max(1, round(test_fraction * len(members)))
        if count >= len(members):
            raise DataError(
                f"class {name!r} has {len(members)} images: too few to keep {count} for the test "
                f"(test_fraction={test_fraction})"
            )
        test[members[permutation(stream_key("folder", "test", label), len(members))[:count]]] = True

    def part(keep: np.ndarray) -> Listing:
        files = tuple(whole.files[i] for i in np.flatnonzero(keep))
        return Listing(files, whole.labels[keep], whole.class_names)

    return part(~test), part(test)
