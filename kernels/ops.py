"""The streaming back ends as torch.library operators: opaque to torch.compile, with a backward of their own.

The state of a forward is what its back end wants to see again in the backward: see `snn_forward` of each.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .checks import check_values
from .reference import working_dtype

_PROBLEM = (
    "Tensor queries, Tensor supports, {teacher}Tensor labels, Tensor? mask, "
    "int num_classes, float temperature, float smoothing, str backend"
)
_SNN_ARGS = _PROBLEM.format(teacher="")
_NND_ARGS = _PROBLEM.format(teacher="Tensor teacher_queries, Tensor teacher_supports, ")


def without_autocast(function: Callable[..., Any]) -> Callable[..., Any]:
    """Run with autocast off (these functions choose their own precision) and on the GPU of the tensors."""

    @functools.wraps(function)
    def run(*args: Any) -> Any:
        device = args[0].device
        if device.type == "cuda":
            with torch.autocast("cuda", enabled=False), torch.cuda.device(device):
                return function(*args)
        if not torch.is_autocast_enabled(device.type):
            return function(*args)
        with torch.autocast(device.type, enabled=False):
            return function(*args)

    return run


@functools.cache
def _engine(backend: str, function: str) -> Callable[..., Any]:
    """Imports triton only if it is used."""
    if backend == "blockwise":
        from . import blockwise

        return getattr(blockwise, function)
    if function == "nnd":
        from . import triton_nnd

        return getattr(triton_nnd, function)
    from . import triton_snn

    return getattr(triton_snn, function)


def _or_empty(grad: Tensor | None, like: Tensor, dtype: torch.dtype) -> Tensor:
    return like.new_empty(0, dtype=dtype) if grad is None else grad.to(dtype)


@without_autocast
def _snn(
    queries: Tensor,
    supports: Tensor,
    labels: Tensor,
    mask: Tensor | None,
    num_classes: int,
    temperature: float,
    smoothing: float,
    backend: str,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    check_values(labels, mask, num_classes)
    forward = _engine(backend, "snn_forward")
    return forward(queries, supports, labels, mask, num_classes, temperature, smoothing, keep)


@without_autocast
def _snn_backward(grad: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
    *problem, backend, need_queries, need_supports = args
    queries, supports = problem[3], problem[4]
    dq, ds = _engine(backend, "snn_backward")(grad, *problem, need_queries, need_supports)
    return _or_empty(dq, queries, queries.dtype), _or_empty(ds, supports, supports.dtype)


@without_autocast
def _nnd(queries: Tensor, *args: Any) -> tuple[Tensor, Tensor, Tensor]:
    *problem, backend, need_queries, need_supports = args
    labels, mask, num_classes = problem[3], problem[4], problem[5]
    check_values(labels, mask, num_classes)
    loss, dq, ds = _engine(backend, "nnd")(queries, *problem, need_queries, need_supports)
    return loss, _or_empty(dq, queries, loss.dtype), _or_empty(ds, queries, loss.dtype)


def _nnd_backward(grad: Tensor, unscaled: Tensor, source: Tensor) -> Tensor:
    """`source`, the vectors to be differentiated in, is here for its dtype and to be seen by autograd."""
    return (unscaled * grad).to(source.dtype)


def _fake_snn(
    queries: Tensor,
    supports: Tensor,
    labels: Tensor,
    mask: Tensor | None,
    num_classes: int,
    temperature: float,
    smoothing: float,
    backend: str,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    empty = functools.partial(queries.new_empty, dtype=working_dtype(queries, supports))
    n, k = queries.shape[0], supports.shape[0]
    state = (3 * n + k,) if backend == "blockwise" else (num_classes, n)
    return empty((n, num_classes)), empty(state), empty((k, n) if keep else (0, 0))


def _fake_snn_backward(grad: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
    queries, supports, need_queries, need_supports = args[3], args[4], args[-2], args[-1]
    return (
        torch.empty_like(queries) if need_queries else queries.new_empty(0),
        torch.empty_like(supports) if need_supports else supports.new_empty(0),
    )


def _fake_nnd(queries: Tensor, supports: Tensor, *args: Any) -> tuple[Tensor, Tensor, Tensor]:
    dtype = working_dtype(queries, supports, args[0], args[1])
    need_queries, need_supports = args[-2:]
    return (
        queries.new_empty((), dtype=dtype),
        queries.new_empty(queries.shape if need_queries else (0,), dtype=dtype),
        queries.new_empty(supports.shape if need_supports else (0,), dtype=dtype),
    )


def _fake_nnd_backward(grad: Tensor, unscaled: Tensor, source: Tensor) -> Tensor:
    return torch.empty_like(unscaled, dtype=source.dtype)


def _snn_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    queries, supports, labels, mask, *ctx.options, _ = inputs
    ctx.save_for_backward(*output, queries, supports, labels, mask)


def _snn_grad(ctx: Any, grad: Tensor, *_: Any, run: Any = None) -> tuple[Any, ...]:
    need_queries, need_supports = ctx.needs_input_grad[:2]
    run = run or torch.ops.nncsl.snn_backward.default
    dq, ds = run(grad, *ctx.saved_tensors, *ctx.options, need_queries, need_supports)
    return dq if need_queries else None, ds if need_supports else None, *[None] * 7


def _nnd_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.save_for_backward(*output[1:], *inputs[:2])


def _nnd_grad(ctx: Any, grad: Tensor, *_: Any, run: Any = None) -> tuple[Any, ...]:
    run = run or torch.ops.nncsl.nnd_backward.default
    dq, ds, queries, supports = ctx.saved_tensors
    need_queries, need_supports = ctx.needs_input_grad[:2]
    return (
        run(grad, dq, queries) if need_queries else None,
        run(grad, ds, supports) if need_supports else None,
        *[None] * 10,
    )


def _no_double_backward(ctx: Any, *_: Any) -> None:
    raise RuntimeError(
        "kernels.snn and kernels.nnd_loss can be differentiated once; for second derivatives use backend='reference'"
    )


def _register() -> None:
    """Define the operators for the life of the process."""
    needs = "bool need_queries, bool need_supports"
    saved = "Tensor grad, Tensor probabilities, Tensor state, Tensor kept"
    schemas = {
        "snn": f"({_SNN_ARGS}, bool keep) -> (Tensor probabilities, Tensor state, Tensor kept)",
        "snn_backward": f"({saved}, {_SNN_ARGS}, {needs}) -> (Tensor queries, Tensor supports)",
        "nnd": f"({_NND_ARGS}, {needs}) -> (Tensor loss, Tensor dq, Tensor ds)",
        "nnd_backward": "(Tensor grad, Tensor unscaled, Tensor source) -> Tensor",
    }
    implementations = {
        "snn": (_snn, _fake_snn),
        "snn_backward": (_snn_backward, _fake_snn_backward),
        "nnd": (_nnd, _fake_nnd),
        "nnd_backward": (_nnd_backward, _fake_nnd_backward),
    }
    for name, schema in schemas.items():
        real, fake = implementations[name]
        torch.library.define(f"nncsl::{name}", schema)
        torch.library.impl(f"nncsl::{name}", "CompositeExplicitAutograd", real)
        torch.library.register_fake(f"nncsl::{name}", fake)
    torch.library.register_autograd("nncsl::snn", _snn_grad, setup_context=_snn_setup)
    torch.library.register_autograd("nncsl::nnd", _nnd_grad, setup_context=_nnd_setup)
    for name in ("snn_backward", "nnd_backward"):
        torch.library.register_autograd(f"nncsl::{name}", _no_double_backward)


# In a checkout this file is imported under two names, kernels.ops and nncsl.kernels.ops: the first one registers.
if not hasattr(torch.ops.nncsl, "snn"):
    _register()


def _once(operator: Any, implementation: Callable[..., Any]) -> Callable[..., Any]:
    """Skip the dispatcher, unless a second derivative might be asked for: the operator refuses that one."""

    def run(*args: Any) -> Any:
        return operator(*args) if torch.is_grad_enabled() else implementation(*args)

    return run


_backward_of_snn = _once(torch.ops.nncsl.snn_backward.default, _snn_backward)
_backward_of_nnd = _once(torch.ops.nncsl.nnd_backward.default, _nnd_backward)


class _Snn(torch.autograd.Function):
    """The operator without the dispatcher, whose price (0.1 ms) is felt at the sizes of a training step."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        output = _snn(*inputs)
        _snn_setup(ctx, inputs, output)
        return output[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        return _snn_grad(ctx, grad, run=_backward_of_snn)


class _Nnd(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        output = _nnd(*inputs)
        _nnd_setup(ctx, inputs, output)
        return output[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        return _nnd_grad(ctx, grad, run=_backward_of_nnd)


def _differentiates(queries: Tensor, supports: Tensor, *_: Any) -> bool:
    return torch.is_grad_enabled() and (queries.requires_grad or supports.requires_grad)


def snn(*inputs: Any) -> Tensor:
    if torch.compiler.is_compiling():
        return torch.ops.nncsl.snn.default(*inputs)[0]
    return _Snn.apply(*inputs) if _differentiates(*inputs) else _snn(*inputs)[0]


def nnd(*inputs: Any) -> Tensor:
    if torch.compiler.is_compiling():
        return torch.ops.nncsl.nnd.default(*inputs)[0]
    return _Nnd.apply(*inputs) if _differentiates(*inputs) else _nnd(*inputs)[0]
