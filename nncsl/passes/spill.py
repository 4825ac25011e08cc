"""Where parts of a batch wait between two passes over it: on the device, in host memory, or in a file."""

import tempfile
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from nncsl import accounting
from nncsl.featurebank.files import read_at, write_at

Key = tuple[str, int]


class Store(Protocol):
    """Tensors by name and part; ``take`` gives one back and forgets it."""

    def put(self, key: Key, tensor: Tensor) -> None: ...

    def get(self, key: Key) -> Tensor: ...

    def take(self, key: Key) -> Tensor: ...


def open_store(where: str, device: torch.device, folder: Path) -> Store:
    """A store for tensors of ``device``: "device", "host", or "disk" (a nameless file in ``folder``)."""
    return FileStore(device, folder) if where == "disk" else MemoryStore(device, onto_host=where == "host")


class MemoryStore:
    """Keeps the tensors themselves; from a GPU, on request, copies in host memory."""

    def __init__(self, device: torch.device, *, onto_host: bool) -> None:
        self._device = device
        self._keep_on = torch.device("cpu") if onto_host else device
        self._tensors: dict[Key, Tensor] = {}

    def put(self, key: Key, tensor: Tensor) -> None:
        kept = tensor.to(self._keep_on)
        if self._keep_on == self._device:
            accounting.hold(kept)
        self._tensors[key] = kept

    def get(self, key: Key) -> Tensor:
        return self._tensors[key].to(self._device)

    def take(self, key: Key) -> Tensor:
        kept = self._tensors.pop(key)
        if self._keep_on == self._device:
            accounting.release(kept)
        return kept.to(self._device)


class _Place(NamedTuple):
    offset: int
    size: int
    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype


class FileStore:
    """Keeps them in a file that has no name and vanishes with the process, however that ends.

    Plain reads and writes, no mapping: what the system caches of the file is not part of this process's memory.
    """

    def __init__(self, device: torch.device, folder: Path) -> None:
        self._device = device
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - lives as long as the store
        self._places: dict[Key, _Place] = {}
        self._free: defaultdict[int, list[int]] = defaultdict(list)
        self._end = 0

    def put(self, key: Key, tensor: Tensor) -> None:
        on_host = tensor.cpu()
        if not (on_host.is_contiguous() or on_host.is_contiguous(memory_format=torch.channels_last)):
            on_host = on_host.contiguous()
        size = on_host.numel() * on_host.element_size()
        if self._free[size]:
            offset = self._free[size].pop()
        else:
            offset, self._end = self._end, self._end + size
        self._places[key] = _Place(offset, size, on_host.shape, on_host.stride(), on_host.dtype)
        left = memoryview(_bytes(on_host))  # type: ignore[arg-type]
        while left:
            written = write_at(self._file.fileno(), left, offset)
            left, offset = left[written:], offset + written

    def get(self, key: Key) -> Tensor:
        place = self._places[key]
        tensor = torch.empty_strided(place.shape, place.strides, dtype=place.dtype)
        left, offset = memoryview(_bytes(tensor)), place.offset  # type: ignore[arg-type]
        while left:
            read = read_at(self._file.fileno(), left, offset)
            if not read:
                raise OSError(f"the file of spilled activations ends at {offset}, expected {place.size} bytes more")
            left, offset = left[read:], offset + read
        return tensor.to(self._device)

    def take(self, key: Key) -> Tensor:
        tensor = self.get(key)
        place = self._places.pop(key)
        self._free[place.size].append(place.offset)
        return tensor


def _bytes(dense: Tensor) -> object:
    """The memory of a tensor without gaps, in the order it lies there."""
    return dense.as_strided((dense.numel(),), (1,)).view(torch.uint8).numpy()
