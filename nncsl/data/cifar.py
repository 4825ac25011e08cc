"""CIFAR-10 and CIFAR-100 from their standard folders: the binary version or the Python (pickled) version."""

import hashlib
import io
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nncsl.errors import DataError

_PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class Version:
    """File names and checksums (binary: sha1, Python: md5) of one of the two data sets."""

    name: str
    num_classes: int
    label_bytes: int
    binary_folder: str
    binary_files: Mapping[str, str]
    binary_names: str
    python_folder: str
    python_files: Mapping[str, str]
    python_names: tuple[str, str]
    python_label: str
    archive: str
    archive_md5: str


CIFAR10 = Version(
    name="cifar10",
    num_classes=10,
    label_bytes=1,
    binary_folder="cifar-10-batches-bin",
    binary_files={
        "data_batch_1.bin": "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
        "data_batch_2.bin": "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
        "data_batch_3.bin": "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
        "data_batch_4.bin": "aab85764eb3584312d3c7f65fd2fd016e36a258e",
        "data_batch_5.bin": "26e2849e66a845b7f1e4614ae70f4889ae604628",
        "test_batch.bin": "67eb016db431130d61cd03c7ad570b013799c88c",
    },
    binary_names="batches.meta.txt",
    python_folder="cifar-10-batches-py",
    python_files={
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
    },
    python_names=("batches.meta", "label_names"),
    python_label="labels",
    archive="cifar-10-python.tar.gz",
    archive_md5="c58f30108f718f92721af3b95e74349a",
)
CIFAR100 = Version(
    name="cifar100",
    num_classes=100,
    label_bytes=2,  # coarse, then fine
    binary_folder="cifar-100-binary",
    binary_files={
        "train.bin": "e207cd2e05b73b1393c74c7f5e7bea451d63e08e",
        "test.bin": "8fb6623e830365ff53cf14adec797474f5478006",
    },
    binary_names="fine_label_names.txt",
    python_folder="cifar-100-python",
    python_files={"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
    python_names=("meta", "fine_label_names"),
    python_label="fine_labels",
    archive="cifar-100-python.tar.gz",
    archive_md5="eb9058c3a382ffc7106e4002c42a8d85",
)


@dataclass(frozen=True)
class CifarArrays:
    """pixels: uint8 [n, 32, 32, 3]; labels: int64 [n]."""

    train_pixels: np.ndarray
    train_labels: np.ndarray
    test_pixels: np.ndarray
    test_labels: np.ndarray
    class_names: tuple[str, ...]


def load(version: Version, data_dir: Path, *, verify: bool = True) -> CifarArrays:
    """Reads whichever version lies in ``data_dir`` (or is ``data_dir``); checksums are compared unless told not to."""
    folder = find(version, data_dir)
    if folder is None:
        raise DataError(
            f"{version.name}: neither {version.binary_folder}/ nor {version.python_folder}/ is in {data_dir}. "
            f"Unpack {version.archive} (or the binary version) there, or let "
            f"`nncsl data prepare {version.name} --data-dir {data_dir}` download it"
        )
    binary = folder.name == version.binary_folder
    files, read = (version.binary_files, _read_binary) if binary else (version.python_files, _read_python)
    parts = [read(version, folder / file, _checked(folder / file, digest, verify)) for file, digest in files.items()]
    pixels = np.concatenate([part[0] for part in parts[:-1]]), parts[-1][0]
    labels = np.concatenate([part[1] for part in parts[:-1]]), parts[-1][1]
    return CifarArrays(pixels[0], labels[0], pixels[1], labels[1], _class_names(version, folder))


def find(version: Version, data_dir: Path) -> Path | None:
    """The folder of either version: in ``data_dir``, or ``data_dir`` itself."""
    for name in (version.binary_folder, version.python_folder):
        for folder in (data_dir / name, data_dir):
            if folder.name == name and folder.is_dir():
                return folder
    return None


def download(version: Version, data_dir: Path) -> None:
    """Fetches and unpacks the Python version, where the network allows."""
    from nncsl.data.torchvision_compat import torchvision

    data_set = {"cifar10": torchvision.datasets.CIFAR10, "cifar100": torchvision.datasets.CIFAR100}[version.name]
    try:
        data_set(str(data_dir), download=True)
    except Exception as error:
        (data_dir / version.archive).unlink(missing_ok=True)
        wanted = ", ".join([*version.python_files, version.python_names[0]])
        raise DataError(
            f"{version.name} could not be downloaded ({error}). Fetch {version.archive} on another machine and unpack "
            f"it so that {data_dir / version.python_folder} holds {wanted}"
        ) from error


def _checked(path: Path, digest: str, verify: bool) -> bytes:
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing: unpack the archive again, all its files are needed") from error
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror}") from error
    algorithm = "sha1" if len(digest) == 40 else "md5"
    found = hashlib.new(algorithm, content, usedforsecurity=False).hexdigest() if verify else digest
    if found != digest:
        raise DataError(
            f"{path} is corrupt: {algorithm} {found}, expected {digest}. Fetch it again, "
            f"or read a deliberately changed copy with --set verify_data=false"
        )
    return content


def _read_binary(version: Version, path: Path, content: bytes) -> tuple[np.ndarray, np.ndarray]:
    record = version.label_bytes + _PIXELS
    if not content or len(content) % record:
        raise DataError(f"{path} is corrupt: {len(content)} bytes, expected a multiple of {record}; fetch it again")
    records = np.frombuffer(content, np.uint8).reshape(-1, record)
    return _planar_to_pixels(records[:, version.label_bytes :]), _labels(
        version, path, records[:, version.label_bytes - 1]
    )


def _read_python(version: Version, path: Path, content: bytes) -> tuple[np.ndarray, np.ndarray]:
    batch = _unpickle(path, content)
    try:
        return _planar_to_pixels(np.asarray(batch["data"], np.uint8)), _labels(
            version, path, batch[version.python_label]
        )
    except (KeyError, ValueError) as error:
        raise DataError(f"{path} is corrupt ({error}); unpack {version.archive} again") from error


def _planar_to_pixels(planar: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(planar.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def _labels(version: Version, path: Path, values: Any) -> np.ndarray:
    labels = np.asarray(values, np.int64)
    if labels.max() >= version.num_classes:
        raise DataError(
            f"{path} is corrupt: label {labels.max()}, expected 0 to {version.num_classes - 1}; fetch it again"
        )
    return labels


def _class_names(version: Version, folder: Path) -> tuple[str, ...]:
    """The names beside the batches; plain numbers where that small file is missing."""
    try:
        if folder.name == version.binary_folder:
            names = (folder / version.binary_names).read_text().split()
        else:
            file, key = version.python_names
            names = list(_unpickle(folder / file, (folder / file).read_bytes())[key])
    except (OSError, KeyError):
        names = []
    return tuple(names) if len(names) == version.num_classes else tuple(map(str, range(version.num_classes)))


class _ArraysOnly(pickle.Unpickler):
    """Unpickles what the batches consist of and nothing else: a tampered file must not run code."""

    _ALLOWED = frozenset({("_codecs", "encode"), ("numpy", "ndarray"), ("numpy", "dtype")})

    def find_class(self, module: str, name: str) -> Any:
        if name == "_reconstruct" and module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            return np.empty(0).__reduce__()[0]
        if (module, name) not in self._ALLOWED:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}")
        return super().find_class(module, name)


def _unpickle(path: Path, content: bytes) -> dict[str, Any]:
    try:
        return _ArraysOnly(io.BytesIO(content), encoding="latin1").load()
    except Exception as error:
        raise DataError(f"{path} can't be read ({error}); unpack the archive again") from error
