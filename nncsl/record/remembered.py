"""RUN/memory: the pixels of the replay memory, the one thing of earlier tasks that a learner may still look at.

A file has the name of what it holds. The one that a checkpoint speaks of is written before it, older ones go after it:
whatever moment a run is killed in, its checkpoint finds its own.
"""

import hashlib
import json
import struct
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from nncsl import accounting, files
from nncsl.data.images import FileBytes, Images, PackedImages
from nncsl.data.sources import Source
from nncsl.errors import DataError
from nncsl.record import archives, checksums
from nncsl.replay import Memory

FOLDER = "memory"
HIDDEN = -1  # the label of an image that is remembered without
_AT_ONCE = 64
_LOCAL_HEADER = 30  # bytes of a zip file's header before a member, without the member's name and extras


class Remembered(NamedTuple):
    """ids and labels of the remembered images, int64 [m] each, ids ascending; images: read from the file as needed."""

    ids: np.ndarray
    labels: np.ndarray
    images: Images
    class_names: tuple[str, ...]
    dataset: str


@contextmanager
def kept(folder: Path, source: Source, memory: Memory, others: np.ndarray) -> Iterator[None]:
    """Keep the pixels that the checkpoint written inside the block refers to, and after it no others.

    others: images that the method remembers besides the memory, int64 [n].
    """
    ids, labels = _contents(memory, others)
    path = _path(folder, ids, labels)
    if not path.exists():
        _write(path, source, ids, labels, checksums.listing(folder, _listed(path)))
    yield
    others_there = [other for other in path.parent.glob("*.npz") if other != path]
    if others_there:  # the checkpoint before this one can do without: a run that goes on from it writes them anew
        checksums.forget(folder, *map(_listed, others_there))
    for other in others_there:
        with suppress(PermissionError):  # Windows keeps what is open: a continued run reads its first one
            other.unlink()


def read(folder: Path, memory: Memory, others: np.ndarray) -> Remembered | None:
    """Return what was kept for a checkpoint with this memory; None in the folder of a run that kept no pixels."""
    path = path_of(folder, memory, others)
    return _open(path) if path.exists() else None


def all_kept(folder: Path) -> list[Remembered]:
    """Return all that the folder has: one file, and after a kill perhaps the one that came before or after it."""
    return [_open(path) for path in sorted((folder / FOLDER).glob("[!.]*.npz"))]


def path_of(folder: Path, memory: Memory, others: np.ndarray) -> Path:
    """Return where the pixels for a checkpoint with this memory are."""
    return _path(folder, *_contents(memory, others))


def _open(path: Path) -> Remembered:
    archives.check_stored(path, archives.LARGEST)  # quick: no checksum of what is no archive
    checksums.check(path.parent.parent, _listed(path), archives.LARGEST)
    try:
        with zipfile.ZipFile(path) as archive:
            if damaged := archive.testzip():
                raise DataError(f"{path} is damaged at {damaged}: its images can't be trusted; copy the run anew")
            offset = _place(path, archive, "pixels.npy")
        saved = archives.read_arrays(path, ("ids", "labels", "sizes", "facts"), archives.LARGEST)
        ids, labels, sizes = saved["ids"], saved["labels"], saved["sizes"]
        facts = json.loads(str(saved["facts"]))
        channels = facts["channels"]
    except (OSError, ValueError, KeyError, TypeError, struct.error, zipfile.BadZipFile, RuntimeError) as error:
        raise DataError(f"{path} can't be read ({error}): copy the run anew") from error
    images = PackedImages(FileBytes(path, offset), _offsets(sizes, channels), sizes, channels)
    return Remembered(ids, labels, images, tuple(facts["class_names"]), facts["dataset"])


def _listed(path: Path) -> str:
    return f"{FOLDER}/{path.name}"


def _contents(memory: Memory, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    ids = np.unique(np.concatenate([memory.ids, memory.unlabeled, others]))
    labels = np.full(len(ids), HIDDEN, np.int64)
    labels[np.searchsorted(ids, memory.ids)] = memory.labels
    return ids, labels


def _path(folder: Path, ids: np.ndarray, labels: np.ndarray) -> Path:
    digest = hashlib.sha256(ids.astype("<i8").tobytes() + labels.astype("<i8").tobytes()).hexdigest()
    return folder / FOLDER / f"{len(ids)}-images-{digest[:12]}.npz"


def _write(
    path: Path, source: Source, ids: np.ndarray, labels: np.ndarray, before_rename: Callable[[Path], object]
) -> None:
    """Write an .npz file image by image: the memory of a large data set need not fit twice into the machine's."""
    total = accounting.image_bytes(source.train, ids)
    channels = source.test.gather(np.zeros(1, np.int64)).pixels.shape[-1]
    facts = {"class_names": source.class_names, "dataset": source.name, "channels": channels}

    def write(file: BinaryIO) -> None:
        sizes = []
        with zipfile.ZipFile(file, "w") as archive:
            with archive.open(_member("pixels.npy"), "w", force_zip64=True) as member:
                header = {"descr": "|u1", "fortran_order": False, "shape": (total,)}
                np.lib.format.write_array_header_1_0(member, header)
                for start in range(0, len(ids), _AT_ONCE):
                    for image in source.train.gather(ids[start : start + _AT_ONCE]).each():
                        sizes.append(image.shape[:2])
                        member.write(np.ascontiguousarray(image).data)
            columns = {"ids": ids, "labels": labels, "sizes": np.array(sizes, np.int64).reshape(-1, 2)}
            for name, column in (columns | {"facts": np.array(json.dumps(facts))}).items():
                with archive.open(_member(f"{name}.npy"), "w") as member:
                    np.lib.format.write_array(member, column, allow_pickle=False)

    files.write_file(path, write, size=total + 64 * len(ids) + 4096, before_rename=before_rename)


def _member(name: str) -> zipfile.ZipInfo:
    return zipfile.ZipInfo(name)  # of 1980: the same images give the same bytes


def _place(path: Path, archive: zipfile.ZipFile, name: str) -> int:
    """Return where in the file an array's content begins: it is stored as it is."""
    with archive.open(name) as member:
        np.lib.format.read_magic(member)
        np.lib.format.read_array_header_1_0(member)
        header = member.tell()
    start = archive.getinfo(name).header_offset
    with path.open("rb") as file:
        file.seek(start + _LOCAL_HEADER - 4)
        named, extra = struct.unpack("<HH", file.read(4))
    return start + _LOCAL_HEADER + named + extra + header


def _offsets(sizes: np.ndarray, channels: int) -> np.ndarray:
    lengths = sizes.prod(axis=1) * channels
    return np.cumsum(lengths) - lengths
