"""Data sets as uint8 images, labels and class names. A new one is one function and one line in SOURCES."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from nncsl import errors
from nncsl.data import cifar, folders, tables
from nncsl.data.decoding import MAX_PIXELS
from nncsl.data.images import ArrayImages, ImageBatch, Images, content_digest
from nncsl.data.listing import NO_CLASS, Found, ImageFile, published_order
from nncsl.data.rng import permutation, stream_key
from nncsl.data.user_files import as_text
from nncsl.errors import ConfigError, DataError, suggestion
from nncsl.files import expanded

__all__ = ["NO_CLASS", "SOURCES", "ImageBatch", "Images", "Source", "SourceOptions", "open_source"]


@dataclass(frozen=True)
class SourceOptions:
    """Where a data set lies and how it is read; each function takes what it needs."""

    data_dir: Path | None = None
    cache_dir: Path | None = None
    short_side: int = 256
    class_list: Path | None = None
    classes: tuple[str, ...] | None = None  # folders to use, instead of those in class_list
    first_label: int = 0  # of the first class among all that a run knows
    test_fraction: float = 0.2
    verify: bool = True
    skip_unreadable: bool = False
    max_pixels: int = MAX_PIXELS


@dataclass(frozen=True)
class Source:
    """A data set. Labels are int64 [n] with values in [0, len(class_names)), of training images also NO_CLASS.

    train_names, test_names: "class/file" of each image, where they are files; by_index: int64, the training image that
    a published index means, where that is not its place here (NO_CLASS: none); left_out: images that can't be read;
    ignored: how many other files lie there, by their kind; caches: files of decoded images.
    """

    name: str
    train: Images
    train_labels: np.ndarray
    test: Images
    test_labels: np.ndarray
    class_names: tuple[str, ...]
    train_names: tuple[str, ...] = ()
    test_names: tuple[str, ...] = ()
    by_index: np.ndarray | None = None
    left_out: tuple[str, ...] = ()
    ignored: Mapping[str, int] = field(default_factory=dict)
    caches: tuple[Path, ...] = ()

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def nbytes(self) -> int:
        """Bytes of images and labels in memory."""
        return sum(part.nbytes for part in (self.train, self.test, self.train_labels, self.test_labels))

    @cached_property
    def fingerprint(self) -> str:
        """sha256 over names, labels and every image: its pixels, or the CRC-32 that a cache has of them."""
        digest = hashlib.sha256(repr((self.name, self.class_names, len(self.train), len(self.test))).encode())
        digest.update(self.train_labels.tobytes() + self.test_labels.tobytes())
        for images in (self.train, self.test):
            digest.update(content_digest(images))
        return digest.hexdigest()


def open_source(name: str, options: SourceOptions) -> Source:
    """The data set of that name; ``folder:PATH``, ``csv:FILE`` and ``hf:PATH`` are the user's own images."""
    kind, path = own_place(name)
    if kind:
        return OWN[kind](replace(options, data_dir=path))
    if name not in SOURCES:
        raise unknown(name)
    source = SOURCES[name](options)
    if not len(source.train) or not len(source.test):
        raise DataError(f"{name}: no training or no test images in {options.data_dir}")
    return source


def unknown(name: str) -> ConfigError:
    """Return the error that says which data sets there are."""
    near = suggestion(name, SOURCES)
    return ConfigError(
        f"dataset={errors.shown(name)}: expected one of {', '.join(SOURCES)}, or folder:PATH, csv:FILE, hf:PATH{near}"
    )


def own_place(name: str) -> tuple[str, Path | None]:
    """Return kind and place of a user's own images, "" and None of any other data set: "folder:PATH" has both."""
    kind, colon, path = name.partition(":")
    return (kind, expanded(path)) if colon and kind in OWN else ("", None)


def dataset_name(name: str) -> str:
    """Return a short name of a data set: that of the folder or file, of the user's own images."""
    _, place = own_place(name)
    return name if place is None else as_text(place.resolve().name)


def digits(options: SourceOptions) -> Source:
    """scikit-learn's 8x8 handwritten digits: 1,297 to train, 50 of each class to test, the same split always."""
    images, labels = _scikit_digits()
    pixels = np.rint(images[..., None] * (255 / 16)).astype(np.uint8)
    test = np.zeros(len(labels), dtype=bool)
    for label in range(10):
        members = np.flatnonzero(labels == label)
        test[members[permutation(stream_key("digits", "test", label), len(members))[:50]]] = True
    return Source(
        name="digits",
        train=ArrayImages(pixels[~test]),
        train_labels=labels[~test],
        test=ArrayImages(pixels[test]),
        test_labels=labels[test],
        class_names=tuple(str(label) for label in range(10)),
    )


def _scikit_digits() -> tuple[np.ndarray, np.ndarray]:
    """Return the images, 0 to 16 [1797, 8, 8], and their labels int64 [1797].

    They are read from scikit-learn's own file where it lies in its usual place: importing it takes seconds.
    """
    package = find_spec("sklearn")
    table = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz" if package and package.origin else None
    if table is not None and table.is_file():
        rows = np.loadtxt(table, delimiter=",")
        return rows[:, :-1].reshape(-1, 8, 8), rows[:, -1].astype(np.int64)
    from sklearn.datasets import load_digits

    digits = load_digits()
    return digits.images, digits.target.astype(np.int64)


def cifar10(options: SourceOptions) -> Source:
    """50,000 + 10,000 images of 32x32 in 10 classes; the binary or the Python version."""
    return _cifar(cifar.CIFAR10, options)


def cifar100(options: SourceOptions) -> Source:
    """50,000 + 10,000 images of 32x32 in 100 (fine) classes; the binary or the Python version."""
    return _cifar(cifar.CIFAR100, options)


def imagenet100(options: SourceOptions) -> Source:
    """100 ImageNet classes in train/ and val/ with a folder per class, decoded once into a cache."""
    classes = options.classes or folders.read_class_list(options.class_list)
    found = folders.find(_required(options.data_dir, "imagenet100", "train/ and val/"), classes)
    return _decoded("imagenet100", found, options)


def own_images(options: SourceOptions) -> Source:
    """A folder per class, below train/ and test/ (or val/), or without those: then split by ratio."""
    path = _required(options.data_dir, "folder:PATH", "one sub-folder per class")
    found = folders.find(path, options.classes or _classes(options), options.test_fraction, options.first_label)
    return _decoded(f"folder-{as_text(path.resolve().name)}", found, options)


def own_table(options: SourceOptions) -> Source:
    """A CSV file of path,label: an empty label is an image of no class."""
    path = _required(options.data_dir, "csv:FILE", "path,label")
    return _decoded(f"csv-{as_text(path.stem)}", tables.find(path, _classes(options), options.test_fraction), options)


def own_arrow(options: SourceOptions) -> Source:
    """A data set of Hugging Face's `datasets` on disk: arrow or parquet files."""
    from nncsl.data import arrow

    path = _required(options.data_dir, "hf:PATH", "arrow or parquet files")
    return _decoded(f"hf-{as_text(path.resolve().name)}", arrow.find(path, options.test_fraction), options)


SOURCES: dict[str, Callable[[SourceOptions], Source]] = {
    "digits": digits,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "imagenet100": imagenet100,
}

# The user's own images, by what stands before the colon.
OWN: dict[str, Callable[[SourceOptions], Source]] = {"folder": own_images, "csv": own_table, "hf": own_arrow}


def _required(data_dir: Path | None, name: str, content: str) -> Path:
    if data_dir is None:
        raise DataError(f"{name} needs --data-dir: the folder that holds {content}")
    return data_dir


def _cifar(version: cifar.Version, options: SourceOptions) -> Source:
    content = f"{version.binary_folder} or {version.python_folder}"
    fetched = f"`nncsl data prepare {version.name} --data-dir FOLDER` fetches it"
    folder = _required(options.data_dir, version.name, f"{content}; {fetched}")
    split = cifar.load(version, folder, verify=options.verify)
    return Source(
        name=version.name,
        train=ArrayImages(split.train_pixels),
        train_labels=split.train_labels,
        test=ArrayImages(split.test_pixels),
        test_labels=split.test_labels,
        class_names=split.class_names,
    )


def _classes(options: SourceOptions) -> tuple[str, ...] | None:
    return folders.read_class_list(options.class_list) if options.class_list else None


def _decoded(name: str, found: Found, options: SourceOptions) -> Source:
    from nncsl.data.packed import packed_images

    parts = {"train": found.train, "test": found.test}
    caches = {
        part: packed_images(f"{name}-{part}", listing.images, options.cache_dir, options.short_side, options.max_pixels)
        for part, listing in parts.items()
    }
    bad = [(parts[part].images[row], why) for part, cache in caches.items() for row, why in cache.unreadable.items()]
    if bad and not options.skip_unreadable:
        lines = "\n".join(f"  {image} can't be decoded ({why})" for image, why in bad)
        raise DataError(
            f"{name}: {len(bad)} of {len(found.train.labels) + len(found.test.labels)} images can't be read:\n{lines}\n"
            "replace or remove them, or leave them out with --skip-unreadable"
        )
    kept = {part: listing.part(caches[part].readable) for part, listing in parts.items()}
    for part, listing in kept.items():
        absent = np.setdiff1d(np.arange(len(listing.class_names)), listing.labels)
        if len(absent):
            raise DataError(f"{name}: class {listing.class_names[absent[0]]!r} has no image left in {part}/ to read")
    train_names, test_names = (
        tuple(image.name for image in listing.images if isinstance(image, ImageFile)) for listing in kept.values()
    )
    return Source(
        name=name,
        train=caches["train"].images,
        train_labels=kept["train"].labels,
        test=caches["test"].images,
        test_labels=kept["test"].labels,
        class_names=found.train.class_names,
        train_names=train_names,
        test_names=test_names,
        by_index=published_order(found.train, caches["train"].readable, by_class=found.by_class),
        left_out=tuple(str(image) for image, _ in bad),
        ignored=found.ignored,
        caches=tuple(cache.images.place for cache in caches.values()),
    )
