"""Images in folders, one sub-folder per class: what is there, in a stable order."""

from collections import Counter
from contextlib import suppress
from importlib import resources
from pathlib import Path

import numpy as np

from nncsl.data.decoding import measure
from nncsl.data.listing import Found, ImageFile, Listing, split_by_ratio
from nncsl.data.user_files import as_text, read_text
from nncsl.errors import DataError
from nncsl.files import reason

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"})
_TEST_FOLDERS = ("test", "val", "validation")
_NO_CLASS_FOLDERS = ("unlabeled", "unlabelled")
_SAMPLED_CLASSES, _SAMPLED_IMAGES = 32, 4  # are looked at to tell photographs from thumbnails


def read_class_list(path: Path | None) -> tuple[str, ...]:
    """Class folder names, one per line; without a path the usual 100 ImageNet classes (Tian et al. 2020)."""
    try:
        usual = resources.files("nncsl") / "data" / "imagenet100.txt"
        text = usual.read_text() if path is None else read_text(path)
    except (OSError, ValueError) as error:
        raise DataError(f"class list {path} can't be read: {reason(error)}") from error
    names = tuple(line.split()[0] for line in text.splitlines() if line.strip() and not line.startswith("#"))
    if not names or len(set(names)) < len(names):
        raise DataError(f"class list {path}: expected one class folder per line, each once, got {len(names)} lines")
    return names


def find(
    root: Path, classes: tuple[str, ...] | None = None, test_fraction: float | None = None, first_label: int = 0
) -> Found:
    """Return the images below ``root``: by folder (train/ and test/ or val/), else split by ratio within each class.

    classes: the class folders to use, in this order; None takes all of them, sorted. Images in unlabeled/, which may
    stand beside the classes or beside train/, are training images of no class. first_label: of the first class among
    all that a run knows; the ratio's choice depends on it.
    """
    try:
        if not root.is_dir():
            raise DataError(
                f"{as_text(root)} is not a folder; expected train/ and test/ (or val/) with a sub-folder per class"
            )
        return _find(root, classes, test_fraction, first_label)
    except OSError as error:
        raise DataError(f"{as_text(error.filename or root)} can't be read: {error.strerror or error}") from error


def _find(root: Path, classes: tuple[str, ...] | None, test_fraction: float | None, first_label: int) -> Found:
    ignored: Counter[str] = Counter()
    test_root = next((root / name for name in _TEST_FOLDERS if (root / name).is_dir()), None)
    by_folder = (root / "train").is_dir() and test_root is not None
    places = [root / "train", root] if by_folder else [root]
    unlabeled = [place / name for place in places for name in _NO_CLASS_FOLDERS if name not in (classes or ())]
    more = tuple(image for folder in unlabeled if folder.is_dir() for image in _members(folder, ignored))
    if by_folder:
        assert test_root is not None
        train = _list(root / "train", classes, ignored)
        return Found(
            train.plus(more), _list(test_root, classes or _classes(root / "train"), ignored), ignored, by_class=True
        )
    if test_fraction is None:
        raise DataError(f"{as_text(root)} has no train/ and val/ folders; expected both, with a sub-folder per class")
    train, test = split_by_ratio(_list(root, classes, ignored), test_fraction, first_label)
    return Found(train.plus(more), test, ignored, by_class=True)


def class_names(root: Path) -> tuple[str, ...]:
    """Return the class folders that :func:`find` would take."""
    by_folder = (root / "train").is_dir() and any((root / name).is_dir() for name in _TEST_FOLDERS)
    try:
        return _classes(root / "train" if by_folder else root)
    except OSError as error:
        raise DataError(f"{as_text(root)} can't be read: {error.strerror or error}") from error


def typical_short_side(root: Path) -> int | None:
    """Return the median short side, in pixels, of a few images of every class; None where no image can be read."""
    found = []
    try:
        inside = root / "train" if (root / "train").is_dir() else root
        for folder in sorted(path for path in inside.iterdir() if path.is_dir())[:_SAMPLED_CLASSES]:
            for image in _members(folder, Counter())[:_SAMPLED_IMAGES]:
                with suppress(DataError):  # that one can't be read is said where all of them are
                    found.append(min(measure(image)))
    except OSError:
        return None
    return round(float(np.median(found))) if found else None


def _list(root: Path, classes: tuple[str, ...] | None, ignored: Counter[str]) -> Listing:
    if classes is None:
        classes = _classes(root)
        if not classes:
            flat = len(_members(root, Counter()))
            hint = f": its {flat} images belong into them; parent folder: {as_text(root.parent)}" if flat else ""
            raise DataError(f"{as_text(root)} has no sub-folders; expected one per class{hint}")
        ignored.update(_kind(p) for p in root.iterdir() if not p.is_dir())
    missing = [name for name in classes if not (root / name).is_dir()]
    if missing:
        raise DataError(
            f"{as_text(root)} lacks {len(missing)} of {len(classes)} class folders, first {missing[0]!r}; "
            f"add them, or name the classes to use with --set class_list=FILE"
        )
    images: list[ImageFile] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        members = _members(root / name, ignored)
        if not members:
            raise DataError(f"class folder {as_text(root / name)} has no images; {_advice(root / name)}")
        images += members
        labels += [label] * len(members)
    return Listing(tuple(images), np.array(labels, np.int64), tuple(map(as_text, classes)))


def _members(folder: Path, ignored: Counter[str]) -> list[ImageFile]:
    """The images of a folder, in the order of their names; other files are counted."""
    found = sorted(p for p in folder.iterdir() if not p.is_dir())
    ignored.update(_kind(p) for p in found if p.suffix.lower() not in SUFFIXES)
    label = as_text(folder.name)
    return [ImageFile(p, f"{label}/{as_text(p.name)}") for p in found if p.suffix.lower() in SUFFIXES]


def _classes(root: Path) -> tuple[str, ...]:
    return tuple(sorted(p.name for p in _folders(root) if p.name not in _NO_CLASS_FOLDERS))


def _folders(root: Path) -> list[Path]:
    return [p for p in root.iterdir() if p.is_dir() and not p.name.startswith(".")]


def _kind(file: Path) -> str:
    return as_text(file.suffix.lower()) or "without suffix"


def _advice(folder: Path) -> str:
    """What to do about a class folder without images: is it a folder of classes itself?"""
    inner = next((p for p in sorted(_folders(folder)) if any(q.suffix.lower() in SUFFIXES for q in p.iterdir())), None)
    if inner is None:
        return "add some or remove the folder"
    return (
        f"but {as_text(folder / inner.name)} has: is this one level too high? Try folder:{as_text(folder)}, or bring "
        "its classes up"
    )
