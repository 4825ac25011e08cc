"""One immutable HDF5 file: the rows of one role that became durable in one commit.

Datasets are contiguous and uncompressed, so a reader needs HDF5 only to learn where they lie and can then map them.
Features go to the file as they are written; the rest of it (HDF5's own structures, keys, labels, scales) is made in
memory around that hole. HDF5 therefore never writes to the disk itself (it crashes when the disk is full), and filling
a bank of any size takes little memory: some 60 bytes per uncommitted row for its key and
label, 105 during the commit.
"""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
from torch import Tensor

from .codecs import Codec
from .errors import CorruptBank
from .files import Disk, explained, name_beside, read_at, sha256_of
from .manifest import REMEDY

Array = np.ndarray[Any, Any]
COLUMNS: dict[str, str] = {"ids": "<i8", "slots": "<i4", "labels": "<i4", "scales": "<f2"}
NO_LABEL = -1
ALIGNMENT = 64  # of every object in the file: a row then starts where vector instructions like it
_ENCODED_AT_ONCE = 8192  # rows: a large write needs no large copy
_KEY_BYTES = 18  # id, slot, label and scale of a row, for saying how much room a write needs


class Sealed(NamedTuple):
    rows: int
    bytes: int
    sha256: str


class _Recording(io.RawIOBase):
    """The file that HDF5 believes it writes: keeps what is written and where, without the hole for the features."""

    def __init__(self) -> None:
        self.pieces: list[tuple[int, bytes]] = []
        self.size = self._at = 0

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self.size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def write(self, data: Any) -> int:
        self.pieces.append((self._at, bytes(data)))
        self._at += len(data)
        self.size = max(self.size, self._at)
        return len(data)

    def truncate(self, size: int | None = None) -> int:
        self.size = self._at if size is None else size
        return self.size

    def readinto(self, buffer: Any) -> int:
        start = self._at
        buffer[:] = self.between(start, start + len(buffer))
        self._at += len(buffer)
        return len(buffer)

    def between(self, start: int, stop: int) -> bytes:
        content = bytearray(stop - start)
        for offset, data in self.pieces:
            begin, end = max(offset, start), min(offset + len(data), stop)
            if begin < end:
                content[begin - start : end - start] = data[begin - offset : end - offset]
        return bytes(content)


def _frame(codec: Codec, rows: int, columns: dict[str, Array]) -> tuple[_Recording, int]:
    """Everything of the file but the features, and the offset at which they belong."""
    recording = _Recording()
    # Aligning every object makes the place of the features independent of their number: they can be written before it
    # is known.
    with h5py.File(recording, "w", alignment_threshold=1, alignment_interval=ALIGNMENT) as file:
        plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plan.set_layout(h5py.h5d.CONTIGUOUS)
        plan.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        plan.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        plan.set_obj_track_times(False)  # the same rows give the same bytes
        kind = h5py.h5t.py_create(codec.numpy_dtype.newbyteorder("<"))
        space = h5py.h5s.create_simple((rows, codec.width))
        offset = h5py.h5d.create(file.id, b"features", kind, space, plan).get_offset()
        for name, column in columns.items():
            file.create_dataset(name, data=column, track_times=False)
    return recording, offset


class ShardWriter:
    """Builds one shard beside its final name. Nothing refers to it before `seal`, and `discard` leaves no trace."""

    def __init__(self, disk: Disk, path: Path, codec: Codec):
        self.path, self.rows = path, 0
        self._disk, self._codec = disk, codec
        self._beside = name_beside(path)
        self._columns: dict[str, list[Array]] = {name: [] for name in COLUMNS}
        self._offset = _frame(codec, 1, {})[1]
        with explained(path, 0):
            self._descriptor: int | None = disk.create(self._beside)

    def append(self, ids: Array, slots: Array, labels: Array | None, features: Tensor) -> None:
        """ids, slots, labels [n], features [n > 0, dim] float32. On an error none of the rows is taken."""
        assert self._descriptor is not None
        offset = self._offset + self.rows * self._row_bytes
        scales: list[Array] = []
        with explained(self.path, len(ids) * (self._row_bytes + _KEY_BYTES)):
            for block in features.split(_ENCODED_AT_ONCE):
                encoded = self._codec.encode(block)
                data = np.ascontiguousarray(encoded.values).data.cast("B")
                self._disk.write(self._descriptor, data, offset)
                offset += len(data)
                if encoded.scales is not None:
                    scales.append(encoded.scales)
        self.rows += len(ids)
        if labels is None:
            labels = np.full(len(ids), NO_LABEL)
        for name, column in zip(COLUMNS, (ids, slots, labels), strict=False):
            self._columns[name].append(column.astype(COLUMNS[name]))
        self._columns["scales"] += scales

    @property
    def _row_bytes(self) -> int:
        return self._codec.width * self._codec.numpy_dtype.itemsize

    def seal(self) -> Sealed:
        """Complete the file, make it durable and give it its name. The caller syncs the directory."""
        assert self._descriptor is not None
        columns = {name: np.concatenate(parts) for name, parts in self._columns.items() if parts}
        if (columns["labels"] == NO_LABEL).all():
            del columns["labels"]
        if self._codec.codebooks is not None:
            columns["codebooks"] = self._codec.codebooks.cpu().numpy()
        frame, offset = _frame(self._codec, self.rows, columns)
        end = self._offset + self.rows * self._row_bytes
        if offset != self._offset:
            raise RuntimeError(f"HDF5 {h5py.version.hdf5_version} placed features at {offset}, expected {self._offset}")
        with explained(self.path, frame.size - self.rows * self._row_bytes):
            self._disk.write(self._descriptor, memoryview(frame.between(0, offset)), 0)
            self._disk.write(self._descriptor, memoryview(frame.between(end, frame.size)), end)
            self._disk.truncate(self._descriptor, frame.size)  # a refused append may have left bytes behind
            with ThreadPoolExecutor(1) as pool:  # hashing keeps a core busy, syncing the disk
                digest = pool.submit(sha256_of, self._beside)
                self._disk.sync(self._descriptor)
            self._disk.close(self._descriptor)
            self._descriptor = None
            self._disk.replace(self._beside, self.path)
        return Sealed(self.rows, frame.size, digest.result())

    def discard(self) -> None:
        """Remove whatever this writer left, sealed or not. Safe to call twice."""
        if self._descriptor is not None:
            self._disk.close(self._descriptor)
            self._descriptor = None
        for path in (self._beside, self.path):
            with suppress(OSError):
                self._disk.remove(path)


class Layout(NamedTuple):
    """Where a dataset lies in a shard."""

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def read_layout(path: Path) -> Layout:
    with _opened(path) as file:
        features = _stored(file, "features")
        if features.ndim != 2:
            raise ValueError("features are not rows of numbers")
        return Layout(features.id.get_offset() or 0, features.shape, features.dtype)


class OpenShard:
    """A shard as it was opened: its columns can be read even if it has been evicted meanwhile."""

    def __init__(self, path: Path):
        with _opened(path) as file:
            stored = {name: _stored(file, name) for name in file}
            self._columns = {
                name: Layout(column.id.get_offset() or 0, column.shape, column.dtype) for name, column in stored.items()
            }
        self._file = path.open("rb", buffering=0)

    def column(self, name: str) -> Array | None:
        """A whole dataset in memory, or None where the shard has none of that name."""
        if name not in self._columns:
            return None
        offset, shape, dtype = self._columns[name]
        values = np.empty(shape, dtype)
        view = values.data.cast("B") if values.size else memoryview(b"")
        while len(view):
            count = read_at(self._file.fileno(), view, offset)
            if not count:
                raise CorruptBank(f"{self._file.name}: ends before its {name} do; {REMEDY}")
            view, offset = view[count:], offset + count
        return values

    def close(self) -> None:
        self._file.close()


def read_column(path: Path, name: str) -> Array | None:
    """A whole dataset in memory, or None where the shard has none of that name."""
    with _opened(path) as file:
        return _stored(file, name)[()] if name in file else None


def _opened(path: Path) -> h5py.File:
    if path.exists() and not path.is_file():  # HDF5 would wait for a pipe and read a device
        raise OSError(f"{path} is not a regular file")
    return h5py.File(path, "r")


def _stored(file: h5py.File, name: str) -> h5py.Dataset:
    """A dataset as this program writes it: of numbers, uncompressed and in one piece, so no larger than its file."""
    found = file[name]
    whole = isinstance(found, h5py.Dataset) and found.chunks is None and not found.external and not found.is_virtual
    if not whole or found.dtype.kind not in "iuf" or found.nbytes > file.id.get_filesize():
        raise ValueError(f"{name} is not stored as a feature bank stores it")
    return found
