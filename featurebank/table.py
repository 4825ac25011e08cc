"""The committed rows of one generation, ready to be gathered: in RAM, mapped from disk, or on a device."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from featurebank.codecs import Codec
from featurebank.shard import Layout, read_column, read_layout

Array = np.ndarray[Any, Any]
_FAULT_AROUND = 1 << 16  # bytes that Linux maps around a touched page
_SMALL_MAPPING = 64 << 20  # below this, mapped pages are not worth giving back


class FeatureTable:
    """gather(rows) for the rows of some shards, numbered through in the order of the shards."""

    def __init__(self, shards: list[Path], codec: Codec, residency: str, device: torch.device | None = None):
        self._codec = codec
        layouts = [read_layout(path) for path in shards]
        starts = np.cumsum([0, *(layout.shape[0] for layout in layouts)])
        self._scales: Array | None = None
        if codec.scaled:
            columns = [read_column(path, "scales") for path in shards]
            self._scales = np.concatenate([np.empty(0, np.float32), *columns]).astype(np.float32)[:, None]
        self._mapped = MappedRows(shards, layouts, starts) if residency == "disk" else None
        self._values = np.empty((0, codec.width), codec.numpy_dtype)
        if self._mapped is None:
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
        if self._on_device is not None:
            at = torch.from_numpy(rows).to(self._device, non_blocking=True)
            values = self._on_device.index_select(0, at)
            scales = None if self._device_scales is None else self._device_scales.index_select(0, at)
        else:
            # numpy's take is twice as quick as torch's index_select for a few hundred rows, and may read a mapping.
            taken = self._values.take(rows, 0) if self._mapped is None else self._mapped.take(rows)
            values = torch.from_numpy(taken)
            scales = None if self._scales is None else torch.from_numpy(self._scales.take(rows, 0))
        if device is not None and device != values.device:
            values = values.to(device)
            scales = None if scales is None else scales.to(device)
        decoded = self._codec.decode(values, scales)
        return decoded if dtype == torch.float32 else decoded.to(dtype)


class MappedRows:
    """Rows of several files through memory maps, without letting the maps fill the memory."""

    def __init__(self, paths: list[Path], layouts: list[Layout], starts: Array):
        self._starts = starts
        self._maps: list[mmap.mmap] = []
        self._rows: list[Array] = []
        for path, (offset, shape, dtype) in zip(paths, layouts, strict=True):
            with path.open("rb") as file:
                mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._maps.append(mapping)
            self._rows.append(np.frombuffer(mapping, dtype, shape[0] * shape[1], offset).reshape(shape))
        self._limit = max(_SMALL_MAPPING, sum(map(len, self._maps)) * 3 // 4) // _FAULT_AROUND
        self._touched = 0

    def take(self, rows: Array) -> Array:
        self._touched += len(rows)
        if self._touched > self._limit:
            self._give_back()
        if len(self._rows) == 1:
            return self._rows[0].take(rows, 0)
        return self._take_from_many(rows)

    def _take_from_many(self, rows: Array) -> Array:
        which = np.searchsorted(self._starts, rows, side="right") - 1
        first = self._rows[0]
        out = np.empty((len(rows), first.shape[1]), first.dtype)
        for number in np.unique(which):
            here = np.flatnonzero(which == number)
            out[here] = self._rows[number].take(rows[here] - self._starts[number], 0)
        return out

    def _give_back(self) -> None:
        """Unmap the pages read so far. They stay in the page cache, for the kernel to drop if memory gets short."""
        self._touched = 0
        for mapping in self._maps:
            if hasattr(mapping, "madvise") and hasattr(mmap, "MADV_DONTNEED"):
                mapping.madvise(mmap.MADV_DONTNEED)


def _read_into(path: Path, layout: Layout, target: Array) -> None:
    view = target.data.cast("B") if target.size else memoryview(b"")
    with path.open("rb", buffering=0) as file:
        file.seek(layout.offset)
        while len(view):
            count = file.readinto(view)
            if not count:
                raise EOFError(f"{path}: ends before its features do")
            view = view[count:]
