"""Device operations and waits of every call, counted without a device.

On a GPU each aten operation that computes starts a kernel, and each Triton launch is one. Both are seen on CPU
tensors: aten through a dispatch mode, launches through a hook around Triton's interpreter. A wait is what makes the
host look at a result: a scalar read, a boolean index, a size that depends on values.

Of torch.compile the launches in the code that Inductor writes for a GPU are counted: see inductor_launches.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from nncsl import kernels
from nncsl.files import write_table
from nncsl.kernels import checks, reference

from . import inductor_launches

VIEWS = 4
SHARPENING, TEMPERATURE, SMOOTHING = 0.25, 0.1, 0.1
# What a training step has: name -> (supports of the current classes, their classes, old supports, old classes).
SHAPES = {
    "CIFAR-10 task 2": (10, 2, 10, 2),
    "CIFAR-10 task 5": (10, 2, 40, 8),
    "CIFAR-100 task 6": (50, 10, 250, 50),
    "ImageNet-100 task 20": (25, 5, 475, 95),
}
COLUMNS = ["shapes", "call", "provider", "N", "K", "C", "aten", "triton", "operations", "waits"]

# Operations that only make a view, or room, or are answered by the host.
FREE = {
    "view", "_unsafe_view", "t", "transpose", "expand", "slice", "select", "unsqueeze", "squeeze", "detach", "alias",
    "empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "as_strided", "permute", "split",
    "split_with_sizes", "unbind", "lift_fresh", "_to_copy_view", "unflatten", "diagonal", "chunk",
    "_reshape_alias", "is_same_size", "is_pinned",
}  # fmt: skip
WAITS = {
    "_local_scalar_dense",
    "item",
    "nonzero",
    "masked_select",
    "unique",
    "unique2",
    "_unique2",
    "equal",
    "is_nonzero",
}


class Counter(TorchDispatchMode):
    """Counts operations that a device would run, and waits; launches of Triton kernels are added from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.aten, self.triton, self.waits = 0, 0, 0
        self.compiled: set[tuple[Any, ...]] = set()  # what a launch is compiled for

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        boolean = name in ("index", "index_put", "index_put_") and any(
            isinstance(x, Tensor) and x.dtype == torch.bool for x in args[1] if x is not None
        )
        self.waits += name in WAITS or boolean
        self.aten += name not in FREE | {"_local_scalar_dense"}
        return function(*args, **(kwargs or {}))


def specialization(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Return what Triton's compiler would know of a launch: constants, types, and of numbers what it may look at."""
    given = {**dict(zip(kernel.arg_names, args, strict=False)), **kwargs}
    unseen = kernel.kwargs.get("do_not_specialize") or ()
    known: list[Any] = [kernel.__name__]
    for name, value in sorted(given.items()):
        if isinstance(value, Tensor):
            known.append((name, value.dtype, value.data_ptr() % 16 == 0))
        elif isinstance(value, float):
            known.append((name, "float"))
        elif name in unseen:
            known.append((name, "int"))
        elif name in kernel.arg_names[: len(args)]:  # given by position: no constant
            known.append((name, "int", value == 1, value % 16 == 0))
        else:
            known.append((name, value))
    return tuple(known)


@contextmanager
def counting() -> Iterator[Counter]:
    """Count what happens inside; labels are treated as those on a GPU, which nobody looks at.

    Kernels are counted and not run: no count depends on a result, and the interpreter is slow.
    """
    from triton.runtime.interpreter import InterpretedFunction

    counter = Counter()

    def counted(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        counter.triton += 1
        counter.compiled.add(specialization(self, args, kwargs))

    looking = mock.patch.object(checks, "values_are_at_hand", lambda _: False)
    with mock.patch.object(InterpretedFunction, "run", counted), looking, counter:
        yield counter


def _vectors(rows: int, dim: int, seed: int) -> Tensor:
    return torch.randn(rows, dim, generator=torch.Generator().manual_seed(seed))


def _snn(q: Tensor, s: Tensor, y: Tensor, c: int) -> Tensor:
    similarity = F.normalize(q, dim=1) @ F.normalize(s, dim=1).t() / TEMPERATURE
    one_hot = (y[:, None] == torch.arange(c)).float()  # F.one_hot looks at its labels
    labels = one_hot * (1 - SMOOTHING) + SMOOTHING / c
    return torch.softmax(similarity, dim=1) @ labels


Losses = Callable[..., tuple[Tensor, Tensor, Tensor]]


class Call(NamedTuple):
    """A function and tensors to call it with."""

    function: Callable[..., Any]
    inputs: tuple[Tensor, ...]


def functions(provider: str) -> tuple[Callable[..., Tensor], Losses, Callable[..., Tensor]]:
    """Return snn, snn_loss and nnd_loss of (vectors, labels, num_classes)."""
    options: dict[str, Any] = {"temperature": TEMPERATURE, "smoothing": SMOOTHING, "backend": provider}

    def eager_loss(queries: Tensor, supports: Tensor, labels: Tensor, c: int) -> tuple[Tensor, Tensor, Tensor]:
        p = _snn(queries, supports, labels, c)
        return *reference.objective(p.log(), VIEWS - 2, 1 / SHARPENING), p.detach().argmax(1)

    def eager_nnd(q: Tensor, s: Tensor, teacher_q: Tensor, teacher_s: Tensor, labels: Tensor, c: int) -> Tensor:
        with torch.no_grad():
            target = _snn(teacher_q, teacher_s, labels, c)
        return -(target * (_snn(q, s, labels, c) + 1e-8).log()).sum(1).mean()

    if provider == "eager":
        return _snn, eager_loss, eager_nnd
    return (
        lambda *given: kernels.snn(*given[:-1], num_classes=given[-1], **options),
        lambda *given: kernels.snn_loss(*given[:-1], num_classes=given[-1], small_views=VIEWS - 2, **options)[:3],
        lambda *given: kernels.nnd_loss(*given[:-1], num_classes=given[-1], **options),
    )


def calls(provider: str, n: int, k: int, c: int, dim: int) -> dict[str, Call]:
    """Return each function as a call that gives what is to be differentiated, and perhaps more."""
    vectors = _vectors(n, dim, 0).requires_grad_(), _vectors(k, dim, 1).requires_grad_()
    teachers = _vectors(n, dim, 2), _vectors(k, dim, 3)
    labels = torch.arange(k) % c
    snn, snn_loss, nnd_loss = functions(provider)
    return {
        "snn": Call(lambda q, s, y: snn(q, s, y, c), (*vectors, labels)),
        "snn_loss": Call(lambda q, s, y: snn_loss(q, s, y, c), (*vectors, labels)),
        "nnd_loss": Call(lambda *given: nnd_loss(*given, c), (*vectors, *teachers, labels)),
    }


def step_calls(provider: str, n: int, shapes: tuple[int, int, int, int], dim: int) -> dict[str, Call]:
    """Return all losses of an NNCSL step, from vectors and the head's logits: as one sum, and as terms whose weights
    are the gradients that their backward starts with. The old supports come first, so that both kinds are views."""
    current, its_classes, old, old_classes = shapes
    queries, supports = _vectors(n, dim, 0).requires_grad_(), _vectors(old + current, dim, 1).requires_grad_()
    teachers = _vectors(n, dim, 2), _vectors(old, dim, 3)
    logits = _vectors(old + current, old_classes + its_classes, 4).requires_grad_()
    labels = [
        torch.arange(count) % classes
        for count, classes in ((old + current, old_classes + its_classes), (old, old_classes), (current, its_classes))
    ]
    _, snn_loss, nnd_loss = functions(provider)

    def terms(q: Tensor, s: Tensor, x: Tensor, tq: Tensor, ts: Tensor, *ys: Tensor) -> tuple[Tensor, ...]:
        before, now = s.split([old, current])
        snn, mem, predictions = snn_loss(q, now, ys[2], its_classes)
        nnd = nnd_loss(q, before, tq, ts, ys[1], old_classes)
        return snn, mem, F.cross_entropy(x, ys[0]), nnd, predictions

    def total(*given: Tensor) -> tuple[Tensor, Tensor]:
        snn, mem, lin, nnd, predictions = terms(*given)
        return snn + 1.0 * mem + lin + 0.2 * nnd, predictions

    inputs = queries, supports, logits, *teachers, *labels
    return {"summed losses of a step": Call(total, inputs), "losses of a step": Call(terms, inputs)}


def count(call: Call) -> dict[str, Counter]:
    """Return counts of the forward and of the backward; what makes the upstream gradient is not counted."""
    for tensor in call.inputs:
        tensor.grad = None  # nothing to add to
    with counting() as forward:
        found = call.function(*call.inputs)
    results = [x for x in (found if isinstance(found, tuple) else (found,)) if x.requires_grad]
    upstream = [torch.ones_like(x) for x in results]
    with counting() as backward:
        torch.autograd.backward(results, upstream)
    return {"forward": forward, "backward": backward}


def counted(provider: str, call: Call) -> Iterator[tuple[str, dict[str, int]]]:
    """Give forward and backward, each with its numbers."""
    if provider == "torch.compile":
        for direction, (triton, extern) in inductor_launches.count(*call).items():
            yield direction, {"aten": extern, "triton": triton, "operations": extern + triton, "waits": 0}
        return
    for direction, found in count(call).items():
        numbers = {"aten": found.aten, "triton": found.triton, "operations": found.aten + found.triton}
        yield direction, {**numbers, "waits": found.waits}


def table(
    queries: int = 32, dim: int = 16, shapes: Iterable[str] = tuple(SHAPES),
    providers: Iterable[str] = ("eager", "torch.compile", "triton"),
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """One row per shape, call, direction and provider. Counts of eager and of ours do not depend on the number of
    queries or the dim, so few and short ones do: the interpreter is slow. torch.compile looks at them: it gets 1024
    queries of dim 128."""
    for name_of_shapes in shapes:
        sizes = SHAPES[name_of_shapes]
        current, its_classes, old, old_classes = sizes
        everyone = current + old, its_classes + old_classes
        for provider in providers:
            how, n, d = ("eager", 1024, 128) if provider == "torch.compile" else (provider, queries, dim)
            found = {
                "snn": (calls(how, n, current, its_classes, d)["snn"], current, its_classes),
                "snn_loss": (calls(how, n, current, its_classes, d)["snn_loss"], current, its_classes),
                "nnd_loss": (calls(how, n, old, old_classes, d)["nnd_loss"], old, old_classes),
                **{name: (call, *everyone) for name, call in step_calls(how, n, sizes, d).items()},
            }
            for name, (call, k, c) in found.items():
                for direction, numbers in counted(provider, call):
                    facts = {"shapes": name_of_shapes, "call": f"{name} {direction}", "provider": provider}
                    yield {**facts, "N": n, "K": k, "C": c, **numbers}


def write(rows: list[dict[str, Any]], path: Path) -> None:
    write_table(path, rows, COLUMNS)
