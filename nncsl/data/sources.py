"""Data sets as uint8 images, labels and class names. A new one is one function and one line in SOURCES."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from nncsl.data import cifar, folders
from nncsl.data.images import ArrayImages, ImageBatch, Images
from nncsl.data.rng import permutation, stream_key
from nncsl.errors import ConfigError, DataError, shown, suggestion
from nncsl.files import expanded

__all__ = ["SOURCES", "ImageBatch", "Images", "Source", "SourceOptions", "open_source"]


@dataclass(frozen=True)
class SourceOptions:
    """Where a data set lies and how it is read; each function takes what it needs."""

    data_dir: Path | None = None
    cache_dir: Path | None = None
    short_side: int = 256
    class_list: Path | None = None
    test_fraction: float = 0.2
    verify: bool = True


@dataclass(frozen=True)
class Source:
    """A data set. Labels are int64 [n] with values in [0, len(class_names))."""

    name: str
    train: Images
    train_labels: np.ndarray
    test: Images
    test_labels: np.ndarray
    class_names: tuple[str, ...]

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def nbytes(self) -> int:
        """Bytes of images and labels in memory."""
        return sum(part.nbytes for part in (self.train, self.test, self.train_labels, self.test_labels))

    @cached_property
    def fingerprint(self) -> str:
        """sha256 over names, labels and a sample of the pixels: tells data sets apart without reading all of them."""
        digest = hashlib.sha256(repr((self.name, self.class_names, len(self.train), len(self.test))).encode())
        digest.update(self.train_labels.tobytes() + self.test_labels.tobytes())
        for images in (self.train, self.test):
            sample = np.linspace(0, len(images) - 1, num=min(len(images), 256)).astype(np.int64)
            digest.update(images.gather(sample).pixels.tobytes())
        return digest.hexdigest()


def open_source(name: str, options: SourceOptions) -> Source:
    """The data set of that name; ``folder:PATH`` is the user's own images."""
    if name.startswith("folder:"):
        options = replace(options, data_dir=expanded(name.removeprefix("folder:")))
        return own_images(options)
    if name not in SOURCES:
        raise ConfigError(
            f"dataset={shown(name)}: expected one of {', '.join(SOURCES)}, or folder:PATH{suggestion(name, SOURCES)}"
        )
    source = SOURCES[name](options)
    if not len(source.train) or not len(source.test):
        raise DataError(f"{name}: no training or no test images in {options.data_dir}")
    return source


def digits(options: SourceOptions) -> Source:
    """scikit-learn's 8x8 handwritten digits: 1,297 to train, 50 of each class to test, the same split always."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    pixels = np.rint(bunch.images[..., None] * (255 / 16)).astype(np.uint8)
    labels = bunch.target.astype(np.int64)
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


def cifar10(options: SourceOptions) -> Source:
    """50,000 + 10,000 images of 32x32 in 10 classes; the binary or the Python version."""
    return _cifar(cifar.CIFAR10, options)


def cifar100(options: SourceOptions) -> Source:
    """50,000 + 10,000 images of 32x32 in 100 (fine) classes; the binary or the Python version."""
    return _cifar(cifar.CIFAR100, options)


def imagenet100(options: SourceOptions) -> Source:
    """100 ImageNet classes in train/ and val/ with a folder per class, decoded once into a cache."""
    classes = folders.read_class_list(options.class_list)
    train, test = folders.split_folders(_required(options.data_dir, "imagenet100", "train/ and val/"), classes)
    return _from_folders("imagenet100", train, test, options)


def own_images(options: SourceOptions) -> Source:
    """A folder per class, below train/ and test/ (or val/), or without those: then split by ratio."""
    path = _required(options.data_dir, "folder:PATH", "one sub-folder per class")
    classes = folders.read_class_list(options.class_list) if options.class_list else None
    train, test = folders.split_folders(path, classes, options.test_fraction)
    return _from_folders(f"folder-{path.resolve().name}", train, test, options)


SOURCES: dict[str, Callable[[SourceOptions], Source]] = {
    "digits": digits,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "imagenet100": imagenet100,
}


def _required(data_dir: Path | None, name: str, content: str) -> Path:
    if data_dir is None:
        raise DataError(f"{name} needs --data-dir: the folder that holds {content}")
    return data_dir


def _cifar(version: cifar.Version, options: SourceOptions) -> Source:
    folder = _required(options.data_dir, version.name, f"{version.binary_folder} or {version.python_folder}")
    split = cifar.load(version, folder, verify=options.verify)
    return Source(
        name=version.name,
        train=ArrayImages(split.train_pixels),
        train_labels=split.train_labels,
        test=ArrayImages(split.test_pixels),
        test_labels=split.test_labels,
        class_names=split.class_names,
    )


def _from_folders(name: str, train: folders.Listing, test: folders.Listing, options: SourceOptions) -> Source:
    from nncsl.data.packed import packed_images

    return Source(
        name=name,
        train=packed_images(f"{name}-train", train.files, options.cache_dir, options.short_side),
        train_labels=train.labels,
        test=packed_images(f"{name}-test", test.files, options.cache_dir, options.short_side),
        test_labels=test.labels,
        class_names=train.class_names,
    )
