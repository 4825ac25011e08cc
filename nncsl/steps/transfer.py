"""From the host to the device: everything a step needs in one copy that nobody waits for."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

_ALIGNMENT = 16  # bytes: what any type, and a vector load of a kernel, may begin at


def ship(cargo: Any, device: torch.device) -> Any:
    """Return the same dicts, lists and tuples with their arrays as tensors of the device; other values stay.

    On a CPU tensors share the arrays' memory. Elsewhere all arrays travel in one buffer, pinned for a GPU, so that the
    copy waits for nothing and nothing for the copy; the tensors are cut out of it there. An array that occurs twice
    travels once.
    """
    arrays: dict[int, np.ndarray] = {}
    mapped(cargo, lambda array: arrays.setdefault(id(array), array))
    if device.type == "cpu":
        arrived = {key: _tensor(array) for key, array in arrays.items()}
    else:
        arrived = dict(zip(arrays, _cut(*packed(list(arrays.values()), device), device), strict=True))
    return mapped(cargo, lambda array: arrived[id(array)])


@lru_cache(maxsize=1024)
def constant(values: tuple[Any, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return a tensor of these values that travels once and stays on the device; nobody may change it.

    The type has to be said: (False,) and (0,) are the same to a cache.
    """
    return torch.tensor(values, dtype=dtype).to(device)


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor of the host on the device, without waiting: for what a step draws on its way."""
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Return rows [n, D] of several tensors one after the other: as a view where that is how they stand in memory."""
    first, place = parts[0], parts[0].storage_offset()
    for part in parts:
        if part._base is None or part._base is not first._base or part.storage_offset() != place:
            return torch.cat(list(parts))
        place += part.numel()
    if not all(part.is_contiguous() and part.shape[1:] == first.shape[1:] for part in parts):
        return torch.cat(list(parts))
    return first.as_strided((sum(map(len, parts)), *first.shape[1:]), first.stride())


def mapped(tree: Any, change: Callable[[np.ndarray], Any]) -> Any:
    """Return dicts, lists and tuples with every array in them changed."""
    if isinstance(tree, np.ndarray):
        return change(tree)
    if isinstance(tree, dict):
        return {key: mapped(value, change) for key, value in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(mapped(value, change) for value in tree))
    if isinstance(tree, list | tuple):
        return type(tree)(mapped(value, change) for value in tree)
    return tree


def _tensor(array: np.ndarray) -> Tensor:
    array = np.ascontiguousarray(array).reshape(array.shape)  # of a number it would make a vector
    return torch.from_numpy(array if array.flags.writeable else array.copy())


Place = tuple[int, int, torch.dtype, tuple[int, ...]]  # first byte, bytes, type, shape


def packed(arrays: list[np.ndarray], device: torch.device) -> tuple[Tensor, list[Place]]:
    """Return all arrays in one buffer of the host, and the place of each in it."""
    places: list[Place] = []
    end = 0
    for array in arrays:
        places.append((end, array.nbytes, torch.from_numpy(np.empty(0, array.dtype)).dtype, array.shape))
        end += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    buffer = torch.empty(end, dtype=torch.uint8, pin_memory=device.type == "cuda")
    into = buffer.numpy()
    for array, (start, size, _, shape) in zip(arrays, places, strict=True):
        into[start : start + size].view(array.dtype).reshape(shape)[...] = array
    return buffer, places


def _cut(buffer: Tensor, places: list[Place], device: torch.device) -> list[Tensor]:
    there = buffer.to(device, non_blocking=True)
    return [there[start : start + size].view(dtype).view(shape) for start, size, dtype, shape in places]
