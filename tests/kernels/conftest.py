"""Triton kernels run on the GPU where there is one, and in Triton's interpreter elsewhere."""

import inspect
import os
from contextlib import suppress
from typing import Any

import pytest
import torch

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)] if torch.cuda.is_available() else ["cpu"]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


@pytest.fixture
def triton_device() -> torch.device:
    """The GPU, or the CPU for Triton's interpreter."""
    pytest.importorskip("triton")
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


class RememberedMembers:
    """The module ``inspect`` for Triton's interpreter, which knows by heart which members of the language are built in.

    The interpreter lists all members, again in every call of a function of a kernel, and leaves those alone that are
    not built in: that took a third of its time. It replaces those that are, all of a place together, until a kernel
    has ended; where the first one is replaced, nothing is left to do.
    """

    ismodule = staticmethod(inspect.ismodule)

    def __init__(self, places: list[Any], is_builtin: Any) -> None:
        self._is_builtin = is_builtin
        self._names = {
            place: [name for name, member in inspect.getmembers(place) if is_builtin(member)] for place in places
        }

    def __getattr__(self, name: str) -> Any:
        return getattr(inspect, name)

    def getmembers(self, place: Any, predicate: Any = None) -> list[tuple[str, Any]]:
        if predicate is not None or place not in self._names:
            return inspect.getmembers(place, predicate)
        names = self._names[place]
        if names and not self._is_builtin(getattr(place, names[0])):
            return []
        return [(name, getattr(place, name)) for name in names]


def _quicken_interpreter() -> None:
    import triton.language as tl
    from triton.runtime import interpreter

    places = [tl, tl.core, tl.tensor, tl.math, getattr(tl.core, "tensor_descriptor_base", tl.tensor)]
    interpreter.inspect = RememberedMembers(places, tl.core.is_builtin)


if os.environ.get("TRITON_INTERPRET") == "1":
    with suppress(ImportError):  # no Triton: its tests are skipped
        _quicken_interpreter()
