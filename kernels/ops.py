"""The streaming back ends as torch.library operators: opaque to torch.compile, with a backward of their own.

Operators take flat lists of arguments: a `Problem` is unpacked where one is called and packed again inside.
"""

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .checks import check_values
from .choice import keeps
from .problem import Forward, Problem, working_dtype


def without_autocast(function: Callable[..., Any]) -> Callable[..., Any]:
    """Run with autocast off (these functions choose their own precision) and on the GPU of the first argument."""

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
    """Return a function of a back end; triton is imported only if it is used."""
    module = backend if backend == "blockwise" else "triton_nnd" if function == "nnd" else "triton_snn"
    return getattr(importlib.import_module(f".{module}", __package__), function)


def _or_empty(grad: Tensor | None, like: Tensor, dtype: torch.dtype) -> Tensor:
    return like.new_empty(0, dtype=dtype) if grad is None else grad.to(dtype)


@without_autocast
def _snn(*inputs: Any) -> Forward:
    *fields, backend, keep = inputs
    problem = Problem(*fields)
    check_values(problem)
    return _engine(backend, "snn_forward")(problem, keep)


def _fake_snn(*inputs: Any) -> Forward:
    *fields, backend, keep = inputs
    problem = Problem(*fields)
    empty = functools.partial(problem.queries.new_empty, dtype=working_dtype(problem))
    n, k = problem.queries.shape[0], problem.supports.shape[0]
    state = (3 * n + k,) if backend == "blockwise" else (problem.num_classes, n)
    return Forward(empty((n, problem.num_classes)), empty(state), empty((k, n) if keep else (0, 0)))


@without_autocast
def _snn_backward(grad: Tensor, probabilities: Tensor, state: Tensor, kept: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    *fields, backend, need_queries, need_supports = inputs
    problem, forward = Problem(*fields), Forward(probabilities, state, kept)
    dq, ds = _engine(backend, "snn_backward")(problem, forward, grad, need_queries, need_supports)
    queries, supports = problem.queries, problem.supports
    return _or_empty(dq, queries, queries.dtype), _or_empty(ds, supports, supports.dtype)


def _fake_snn_backward(grad: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    queries, supports, need_queries, need_supports = inputs[3], inputs[4], inputs[-2], inputs[-1]
    return (
        torch.empty_like(queries) if need_queries else queries.new_empty(0),
        torch.empty_like(supports) if need_supports else supports.new_empty(0),
    )


def _student_and_teacher(*fields: Any) -> tuple[Problem, Problem]:
    queries, supports, teacher_queries, teacher_supports, *options = fields
    return Problem(queries, supports, *options), Problem(teacher_queries, teacher_supports, *options)


@without_autocast
def _nnd(*inputs: Any) -> tuple[Tensor, ...]:
    *fields, backend, need_queries, need_supports = inputs
    student, teacher = _student_and_teacher(*fields)
    check_values(student)
    loss, dq, ds = _engine(backend, "nnd")(student, teacher, need_queries, need_supports)
    return loss, _or_empty(dq, loss, loss.dtype), _or_empty(ds, loss, loss.dtype)


def _fake_nnd(*inputs: Any) -> tuple[Tensor, ...]:
    *fields, _, need_queries, need_supports = inputs
    student, teacher = _student_and_teacher(*fields)
    empty = functools.partial(student.queries.new_empty, dtype=working_dtype(student, teacher))
    return (
        empty(()),
        empty(student.queries.shape if need_queries else (0,)),
        empty(student.supports.shape if need_supports else (0,)),
    )


def _nnd_backward(grad: Tensor, unscaled: Tensor, source: Tensor) -> Tensor:
    """`source`, the vectors to be differentiated in, is here for its dtype and to be seen by autograd."""
    return (unscaled * grad).to(source.dtype)


def _fake_nnd_backward(grad: Tensor, unscaled: Tensor, source: Tensor) -> Tensor:
    return torch.empty_like(unscaled, dtype=source.dtype)


def _snn_setup(ctx: Any, inputs: tuple[Any, ...], output: Forward) -> None:
    queries, supports, labels, mask, *ctx.options, _ = inputs
    ctx.save_for_backward(*output, queries, supports, labels, mask)


def _snn_grad(ctx: Any, grad: Tensor, *_: Any, run: Any = None) -> tuple[Any, ...]:
    need_queries, need_supports = ctx.needs_input_grad[:2]
    run = run or torch.ops.nncsl.snn_backward.default
    dq, ds = run(grad, *ctx.saved_tensors, *ctx.options, need_queries, need_supports)
    return dq if need_queries else None, ds if need_supports else None, *[None] * 7


def _nnd_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
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
    options = "Tensor labels, Tensor? mask, int num_classes, float temperature, float smoothing, str backend"
    snn = f"Tensor queries, Tensor supports, {options}"
    nnd = f"Tensor queries, Tensor supports, Tensor teacher_queries, Tensor teacher_supports, {options}"
    saved = "Tensor grad, Tensor probabilities, Tensor state, Tensor kept"
    needs = "bool need_queries, bool need_supports"
    for name, real, fake, schema in (
        ("snn", _snn, _fake_snn, f"({snn}, bool keep) -> (Tensor probabilities, Tensor state, Tensor kept)"),
        ("snn_backward", _snn_backward, _fake_snn_backward, f"({saved}, {snn}, {needs}) -> (Tensor dq, Tensor ds)"),
        ("nnd", _nnd, _fake_nnd, f"({nnd}, {needs}) -> (Tensor loss, Tensor dq, Tensor ds)"),
        ("nnd_backward", _nnd_backward, _fake_nnd_backward, "(Tensor grad, Tensor unscaled, Tensor source) -> Tensor"),
    ):
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


def _undispatched(
    implementation: Any, setup: Any, gradient: Any, backward_operator: Any, backward_implementation: Any
) -> Any:
    """Return the operator without the dispatcher, whose price (0.1 ms) is felt at the sizes of a training step."""

    class Undispatched(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Tensor:
            output = implementation(*inputs)
            setup(ctx, inputs, output)
            return output[0]

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
            # With gradients enabled a second derivative might be asked for: the operator refuses that one.
            run = backward_operator if torch.is_grad_enabled() else backward_implementation
            return gradient(ctx, grad, run=run)

    return Undispatched


_Snn = _undispatched(_snn, _snn_setup, _snn_grad, torch.ops.nncsl.snn_backward.default, _snn_backward)
_Nnd = _undispatched(_nnd, _nnd_setup, _nnd_grad, torch.ops.nncsl.nnd_backward.default, _nnd_backward)


def snn(problem: Problem, backend: str) -> Tensor:
    """Return the class probabilities [N, C]."""
    *fields, temperature, smoothing = problem
    keep = backend == "blockwise" and keeps(problem)
    inputs = *fields, float(temperature), float(smoothing), backend, keep
    if torch.compiler.is_compiling():
        return torch.ops.nncsl.snn.default(*inputs)[0]
    return _Snn.apply(*inputs) if any(problem.needs_grad()) else _snn(*inputs)[0]


def nnd(student: Problem, teacher: Problem, backend: str) -> Tensor:
    """Return the distillation loss, a scalar."""
    queries, supports, *fields, temperature, smoothing = student
    vectors = queries, supports, teacher.queries, teacher.supports
    inputs = *vectors, *fields, float(temperature), float(smoothing), backend, *student.needs_grad()
    if torch.compiler.is_compiling():
        return torch.ops.nncsl.nnd.default(*inputs)[0]
    return _Nnd.apply(*inputs) if any(student.needs_grad()) else _nnd(*inputs)[0]
