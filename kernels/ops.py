"""The streaming back ends as operators (see operators.py): from flat lists of arguments to a `Problem` and back."""

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .checks import check_values
from .choice import keeps
from .operators import Outputs, Pair, differentiable
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
    module = backend if backend == "blockwise" else "triton_nnd" if function.startswith("nnd") else "triton_snn"
    return getattr(importlib.import_module(f".{module}", __package__), function)


def _or_empty(grad: Tensor | None, like: Tensor) -> Tensor:
    return like.new_empty(0) if grad is None else grad.to(like.dtype)


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
def _snn_gradient(grad: Tensor, output: Tensor, state: Tensor, kept: Tensor, *inputs: Any) -> Outputs:
    *fields, backend, keep, need_queries, need_supports = inputs
    problem, forward = Problem(*fields), Forward(output, state, kept)
    dq, ds = _engine(backend, "snn_backward")(problem, forward, keep, grad, need_queries, need_supports)
    return _or_empty(dq, problem.queries), _or_empty(ds, problem.supports)


def _student_and_teacher(*fields: Any) -> tuple[Problem, Problem]:
    queries, supports, teacher_queries, teacher_supports, *options = fields
    return Problem(queries, supports, *options), Problem(teacher_queries, teacher_supports, *options)


@without_autocast
def _nnd(*inputs: Any) -> Outputs:
    *fields, backend, need_queries, need_supports = inputs
    student, teacher = _student_and_teacher(*fields)
    check_values(student)
    loss, dq, ds = _engine(backend, "nnd")(student, teacher, need_queries, need_supports)
    return loss, _or_empty(dq, loss), _or_empty(ds, loss)


def _fake_nnd(*inputs: Any) -> Outputs:
    *fields, _, need_queries, need_supports = inputs
    student, teacher = _student_and_teacher(*fields)
    empty = functools.partial(student.queries.new_empty, dtype=working_dtype(student, teacher))
    return (
        empty(()),
        empty(student.queries.shape if need_queries else (0,)),
        empty(student.supports.shape if need_supports else (0,)),
    )


def _nnd_gradient(grad: Tensor, loss: Tensor, dq: Tensor, ds: Tensor, *inputs: Any) -> Outputs:
    """The gradient was found with the value: it is only scaled here."""
    queries, supports, need_queries, need_supports = inputs[0], inputs[1], inputs[-2], inputs[-1]
    return (
        _or_empty(dq * grad if need_queries else None, queries),
        _or_empty(ds * grad if need_supports else None, supports),
    )


_SETTINGS = "Tensor labels, Tensor? mask, int num_classes, float temperature, float smoothing, bool log, str backend"
_SNN = Pair(
    "snn", _snn, _snn_gradient, _fake_snn, f"Tensor queries, Tensor supports, {_SETTINGS}, bool keep",
    "Tensor output, Tensor state, Tensor kept",
)  # fmt: skip
_NND = Pair(
    "nnd", _nnd, _nnd_gradient, _fake_nnd,
    "Tensor queries, Tensor supports, Tensor teacher_queries, Tensor teacher_supports, "
    f"{_SETTINGS}, bool with_queries, bool with_supports",
    "Tensor loss, Tensor dq, Tensor ds",
)  # fmt: skip
_run_snn, _run_nnd = differentiable(_SNN), differentiable(_NND)


def snn(problem: Problem, backend: str) -> Tensor:
    """Return the class probabilities [N, C], or their logarithms."""
    return _run_snn(*problem, backend, backend == "blockwise" and keeps(problem))[0]


def nnd(student: Problem, teacher: Problem, backend: str) -> Tensor:
    """Return the distillation loss, a scalar."""
    queries, supports, *options = student
    vectors = queries, supports, teacher.queries, teacher.supports
    return _run_nnd(*vectors, *options, backend, *student.needs_grad())[0]
