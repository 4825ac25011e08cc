"""Small calls are as long as the operations that they start: which ones these are on a CPU, by counting."""

import inspect
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from nncsl import kernels

K, DIM = 20, 64


class Started(TorchDispatchMode):
    """Lists the operations that are started, views and allocations too, and whether a logarithm is given a zero."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.log_of_zero = False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        self.names.append(name)
        if name in ("log", "log_"):
            self.log_of_zero |= bool((args[0] == 0).any())
        return function(*args, **(kwargs or {}))


def drawn(classes: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return queries, supports and labels of two classes, the first and the last one."""
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(K) % 2 * (classes - 1)
    return torch.randn(1024, DIM, generator=rng), torch.randn(K, DIM, generator=rng), labels


@pytest.mark.parametrize(("classes", "most"), [(10, 22), (100, 24)], ids=["few classes", "more classes than supports"])
def test_a_forward_without_gradient_keeps_nothing(classes: int, most: int) -> None:
    queries, supports, labels = drawn(classes)
    with Started() as started:
        found = kernels.snn(queries, supports, labels, num_classes=classes)
    assert len(started.names) <= most, started.names
    assert "cat" not in started.names  # of the state for a backward
    with Started() as started:
        same = kernels.snn(queries.requires_grad_(), supports, labels, num_classes=classes)
    assert "cat" in started.names
    assert torch.equal(found, same)


def test_no_logarithm_of_an_absent_class() -> None:
    """It is -inf, takes ten times as long as another one, and would be masked afterwards."""
    queries, supports, labels = drawn(10)
    with Started() as started:
        loss = kernels.nnd_loss(queries, supports, queries, supports, labels, num_classes=10)
    assert not started.log_of_zero
    two = kernels.nnd_loss(queries, supports, queries, supports, labels.clamp(max=1), num_classes=2)
    torch.testing.assert_close(loss, two)


def test_nobody_looks_up_signatures(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch does, for 0.1 ms, on every call of an autograd function with `setup_context`."""
    queries, supports, labels = drawn(10)
    looked_up: list[object] = []
    signature = inspect.signature
    monkeypatch.setattr(inspect, "signature", lambda *args, **kw: looked_up.append(args) or signature(*args, **kw))
    queries.requires_grad_()
    kernels.snn(queries, supports, labels, num_classes=10).sum().backward()
    kernels.nnd_loss(queries, supports, queries, supports, labels, num_classes=10).backward()
    kernels.snn_loss(queries, supports, labels, num_classes=10).cross_entropy.backward()
    assert not looked_up
