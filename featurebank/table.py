"""The committed rows of one generation, ready to be gathered: in RAM, on disk, or on a device."""

from __future__ import annotations

import mmap
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .codecs import Codec
from .errors import CorruptBank
from .files import read_at
from .manifest import REMEDY
from .shard import Layout, read_column, read_layout

Array = np.ndarray[Any, Any]
LARGEST_MAPPING = 128 << 20  # bytes of features; see FileRows


class FeatureTable:
    """gather(rows) for the rows of some shards, numbered through in the order of the shards."""

    def __init__(self, shards: list[Path], codec: Codec, residency: str, device: torch.device | None = None):
        self._codec = codec
        layouts = [read_layout(path) for path in shards]
        columns = [read_column(path, "scales") for path in shards]
        fit = all((layout.shape[1], layout.dtype) == (codec.width, codec.numpy_dtype) for layout in layouts)
        fit &= all((column is not None) == codec.scaled for column in columns)  # rows of int4 and pq look alike
        if not fit or (shards and codec.learned and codec.codebooks is None):
            raise ValueError(f"its features are not those of codec {codec.name!r} with {codec.dim} numbers each")
        starts = np.cumsum([0, *(layout.shape[0] for layout in layouts)])
        self._scales: Array | None = None
        if codec.scaled:
            self._scales = np.concatenate([np.empty(0, np.float32), *columns]).astype(np.float32)[:, None]
        self._files = FileRows(shards, layouts, starts, codec) if residency == "disk" else None
        self._values = np.empty((0, codec.width), codec.numpy_dtype)
        if self._files is None:
            self._values = np.empty((int(starts[-1]), codec.width), codec.numpy_dtype)
            for path, layout, start in zip(shards, layouts, starts[:-1], strict=True):
                _read_into(path, layout, self._values[start : start + layout.shape[0]])
        self._on_device: Tensor | None = None
        if residency == "device":
            assert device is not None
            self._device = device
            self._on_device = torch.from_numpy(self._values).to(device)
            self._values = self._values[:0]
            self._device_scales = None if self._scales is None else torch.from_numpy(self._scales).to(self._device)

    def gather(self, rows: Array, device: torch.device | None = None, dtype: torch.dtype = torch.float32) -> Tensor:
        """rows [n], all valid -> decoded [n, dim]. Encoded bytes travel to the device, not decoded ones."""
        fetched = tuple(map(torch.from_numpy, self.fetch(rows)))
        if self._on_device is not None:
            fetched = self._taken(fetched[0].to(self._device, non_blocking=True))
        if device is not None and device != fetched[0].device:
            fetched = tuple(part.to(device) for part in fetched)
        decoded = self._decoded(fetched)
        return decoded if dtype == torch.float32 else decoded.to(dtype)

    def fetch(self, rows: Array) -> tuple[Array, ...]:
        """rows [n], all valid -> the host's half of a gather: encoded values [n, width], and scales [n, 1] if there are
        any; where the features reside on a device, only the rows."""
        if self._on_device is not None:
            return (rows,)
        # numpy's take is twice as quick as torch's index_select for a few hundred rows, and may read a mapping.
        values = self._values.take(rows, 0) if self._files is None else self._files.take(rows)
        return (values,) if self._scales is None else (values, self._scales.take(rows, 0))

    def decode(self, fetched: tuple[Tensor, ...]) -> Tensor:
        """The other half: what was fetched, as tensors of any device (rows: of that of the features) -> [n, dim]."""
        return self._decoded(fetched if self._on_device is None else self._taken(fetched[0]))

    def _taken(self, rows: Tensor) -> tuple[Tensor, ...]:
        assert self._on_device is not None
        values = self._on_device.index_select(0, rows)
        return (values,) if self._device_scales is None else (values, self._device_scales.index_select(0, rows))

    def _decoded(self, parts: tuple[Tensor, ...]) -> Tensor:
        return self._codec.decode(parts[0], parts[1] if len(parts) > 1 else None)


class FileRows:
    """Rows of several shards, left in their files.

    Small banks are mapped: nothing is quicker. But a touched page brings its neighborhood with it (2 MB with the large
    folios of recent Linux), so that reading a hundred random rows makes a mapped bank wholly resident. Larger banks are
    therefore read row by row with pread, which leaves the memory to the page cache.
    """

    def __init__(self, paths: list[Path], layouts: list[Layout], starts: Array, codec: Codec):
        self._starts, self._codec = starts, codec
        self._row_bytes = codec.width * codec.numpy_dtype.itemsize
        self._files = [path.open("rb", buffering=0) for path in paths]
        self._offsets = np.array([layout.offset for layout in layouts], np.int64)
        self._maps: list[Array] | None = None
        if starts[-1] * self._row_bytes <= LARGEST_MAPPING:
            self._maps = [_mapped(file, layout) for file, layout in zip(self._files, layouts, strict=True)]

    def take(self, rows: Array) -> Array:
        if self._maps is not None and len(self._maps) == 1:
            return self._maps[0].take(rows, 0)
        out = np.empty((len(rows), self._codec.width), self._codec.numpy_dtype)
        which = np.searchsorted(self._starts, rows, side="right") - 1
        within = rows - self._starts[which]
        if self._maps is None:
            self._pread(which, within, out)
        else:
            for number, mapped in enumerate(self._maps):
                here = np.flatnonzero(which == number)
                out[here] = mapped.take(within[here], 0)
        return out

    def _pread(self, which: Array, within: Array, out: Array) -> None:
        size, buffer = self._row_bytes, out.data.cast("B")
        offsets = self._offsets[which] + within * size
        descriptors = [file.fileno() for file in self._files]
        for row, (number, offset) in enumerate(zip(which.tolist(), offsets.tolist(), strict=True)):
            if read_at(descriptors[number], buffer[row * size : row * size + size], offset) != size:
                raise CorruptBank(f"{self._files[number].name}: ends before its features do; {REMEDY}")


def _mapped(file: FileIO, layout: Layout) -> Array:
    mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    rows, width = layout.shape
    return np.frombuffer(mapping, layout.dtype, rows * width, layout.offset).reshape(rows, width)


def _read_into(path: Path, layout: Layout, target: Array) -> None:
    view = target.data.cast("B") if target.size else memoryview(b"")
    with path.open("rb", buffering=0) as file:
        file.seek(layout.offset)
        while len(view):
            count = file.readinto(view)
            if not count:
                raise CorruptBank(f"{path}: ends before its features do; {REMEDY}")
            view = view[count:]
