"""A device that is not there: computes on the CPU, but its tensors are elsewhere, and whoever looks at them is seen.

On a GPU the host waits where it reads a result, where a shape depends on values, and in every copy that was not asked
not to block. Tensors of this device say that they are on "meta", so code takes the ways it takes on a GPU, and hold
real values, so it also arrives. Inside :func:`standing_in` everything that reaches the device is written down.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map

from .kernels_launches import FREE, WAITS

DEVICE = torch.device("meta")
# Besides those: torch reads a maximum or a sum of the device to know how large the result is.
SIZED_BY_VALUES = {"repeat_interleave", "bincount", "unique_consecutive", "unique_dim", "argwhere"}
PROJECT = Path(__file__).resolve().parents[1]
OURS = tuple(f"{PROJECT / name}{os.sep}" for name in ("nncsl", "kernels", "featurebank", "benchmarks", "tests"))


class Event(NamedTuple):
    """What happened: an "operation", a "copy" to the device, a "wait"; of which name, and in which line of ours."""

    kind: str
    name: str
    place: str


class OnDevice(Tensor):
    """A tensor of the device; ``held`` is on the CPU and holds its values."""

    held: Tensor

    @staticmethod
    def __new__(cls, real: Tensor) -> "OnDevice":
        return torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined, no-any-return]
            cls,
            real.shape,
            strides=real.stride(),
            storage_offset=real.storage_offset(),
            dtype=real.dtype,
            layout=real.layout,
            device=DEVICE,
        )

    def __init__(self, real: Tensor) -> None:
        self.held = real

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"OnDevice({self.held!r})"

    def __getitem__(self, key: Any) -> Tensor:
        return super().__getitem__(_as_tensors(key))

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(_as_tensors(key), value)

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return run(function, args, kwargs or {})


def _as_tensors(key: Any) -> Any:
    """Return an index whose lists are tensors of the host: torch makes tensors of "meta" of them, without values."""
    if isinstance(key, tuple):
        return tuple(map(_as_tensors, key))
    return torch.tensor(key) if isinstance(key, list) else key


def unwrapped(x: Any) -> Any:
    """Return the CPU tensor behind one of the device; anything else as it is."""
    if isinstance(x, Tensor) and x.device == DEVICE and not isinstance(x, OnDevice):
        raise AssertionError(f"a tensor of {DEVICE} without values: {tuple(x.shape)} {x.dtype}")
    return x.held if isinstance(x, OnDevice) else x


def run(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute on the CPU what was asked of the device."""
    target = kwargs.get("device")
    to_device = target is not None and torch.device(target).type == DEVICE.type
    among = any(isinstance(x, OnDevice) for x in tree_flatten((args, kwargs))[0])
    plain_args, plain_kwargs = tree_map(unwrapped, (args, kwargs))
    if target is not None:
        plain_kwargs["device"] = torch.device("cpu")
    found = function(*plain_args, **plain_kwargs)
    if target is not None and not to_device:  # to the host
        return found
    if not (to_device or among):
        return found
    if "empty" in function.overloadpacket.__name__:
        found.zero_()  # what a kernel that is only counted does not write
    if to_device and not among and function.overloadpacket.__name__ == "_to_copy":
        found = found.clone()  # never the host's own memory
    wrapped = tree_map(lambda x: OnDevice(x) if isinstance(x, Tensor) else x, found)
    return return_and_correct_aliasing(function, args, kwargs, wrapped) if among else wrapped


class Watch(TorchDispatchMode):
    """Writes down what reaches the device."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []

    def count(self, kind: str) -> int:
        """Return how many events of a kind there were."""
        return sum(event.kind == kind for event in self.events)

    def places(self, kind: str) -> list[str]:
        """Return where they were, each with its name."""
        return [f"{event.name} in {event.place}" for event in self.events if event.kind == kind]

    def note(self, kind: str, name: str) -> None:
        self.events.append(Event(kind, name, place()))

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = function.overloadpacket.__name__
        tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor)]
        among = any(isinstance(x, OnDevice) for x in tensors)
        target = kwargs.get("device")
        arrives = target is not None and torch.device(target).type == DEVICE.type
        if arrives and not among and tensors:
            self.note("copy", name)
            if not kwargs.get("non_blocking", False):
                self.note("wait", f"{name} (blocking copy to the device)")
        elif among and target is not None and not arrives:
            if not kwargs.get("non_blocking", False):
                self.note("wait", f"{name} (copy to the host)")
        elif among or arrives:
            if name == "copy_" and not (isinstance(args[0], OnDevice) and isinstance(args[1], OnDevice)):
                self.note("copy", name)
                if not ((len(args) > 2 and args[2]) or kwargs.get("non_blocking", False)):
                    self.note("wait", f"{name} (blocking copy)")
            elif any(isinstance(x, Tensor) and not isinstance(x, OnDevice) and x.ndim for x in tensors):
                self.note("copy", name)
                self.note("wait", f"{name} (takes a tensor of the host)")
            if name in WAITS | SIZED_BY_VALUES or _by_mask(name, args):
                self.note("wait", name)
            if name not in FREE | {"_local_scalar_dense", "prim::device", "device"}:
                self.note("operation", name)
        return run(function, args, kwargs)


def _by_mask(name: str, args: Any) -> bool:
    """Tell whether rows are chosen by a mask, so that a shape depends on values."""
    if name not in ("index", "index_put", "index_put_"):
        return False
    return any(isinstance(x, Tensor) and x.dtype in (torch.bool, torch.uint8) for x in args[1] if x is not None)


def place() -> str:
    """Return the innermost line of the project's own code, beside this file."""
    frame = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(OURS) and not path.endswith(("stand_in.py", "kernels_launches.py")):
            return f"{Path(path).relative_to(PROJECT)}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "autograd"


@contextmanager
def standing_in() -> Iterator[Watch]:
    """Write down what reaches the device inside the block."""
    watch, made = Watch(), torch.tensor

    def tensor(data: Any, *, device: Any = None, **other: Any) -> Tensor:
        """For "meta" torch would not look at the data."""
        return made(data, **other) if device is None else made(data, **other).to(device)

    with mock.patch.object(torch, "tensor", tensor), without_autocast(), watch:
        yield watch


@contextmanager
def without_autocast() -> Iterator[None]:
    """Leave autocast, which "meta" does not have, off there."""
    autocast, enabled = torch.autocast, torch.is_autocast_enabled

    def off(kind: str, *rest: Any, **options: Any) -> AbstractContextManager[Any]:
        return nullcontext() if kind == DEVICE.type else autocast(kind, *rest, **options)

    def is_enabled(kind: str = "cuda") -> bool:
        return kind != DEVICE.type and enabled(kind)

    with mock.patch.object(torch, "autocast", off), mock.patch.object(torch, "is_autocast_enabled", is_enabled):
        yield
