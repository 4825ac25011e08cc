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
    module = {"triton": "fused"}.get(backend, backend)
    return getattr(importlib.import_module(f".{module}", __package__), function)


def _or_empty(grad: Tensor | None, like: Tensor) -> Tensor:
    return like.new_empty(0) if grad is None else grad.to(like.dtype)


@without_autocast
def _snn_output(problem: Problem, backend: str) -> Tensor:
    check_values(problem)
    return _engine(backend, "snn_output")(problem)


@without_autocast
def _snn(*inputs: Any) -> Forward:
    *fields, backend, keep = inputs
    problem = Problem(*fields)
    check_values(problem)
    return _engine(backend, "snn_forward")(problem, keep)


def _fake_snn(*inputs: Any) -> Forward:
    *fields, _, keep = inputs
    problem = Problem(*fields)
    empty = functools.partial(problem.queries.new_empty, dtype=working_dtype(problem))
    n, k = problem.queries.shape[0], problem.supports.shape[0]
    return Forward(empty((n, problem.num_classes)), empty((3 * n + k,)), empty((k, n) if keep else (0, 0)))


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
    *fields, backend, mean, need_queries, need_supports = inputs
    student, teacher = _student_and_teacher(*fields)
    check_values(student)
    if backend == "triton":
        return _engine(backend, "nnd_forward")(student, teacher, mean)
    loss, dq, ds = _engine(backend, "nnd")(student, teacher, need_queries, need_supports)
    return loss, _or_empty(dq, loss), _or_empty(ds, loss), loss.new_empty(0)


def _fake_nnd(*inputs: Any) -> Outputs:
    *fields, backend, mean, need_queries, need_supports = inputs
    student, teacher = _student_and_teacher(*fields)
    empty = functools.partial(student.queries.new_empty, dtype=working_dtype(student, teacher))
    n, k, c = student.queries.shape[0], student.supports.shape[0], student.num_classes
    if backend == "triton":
        return empty(() if mean else (n,)), empty((n, c)), empty((n, c)), empty((3 * n + k,))
    return (
        empty(()),
        empty(student.queries.shape if need_queries else (0,)),
        empty(student.supports.shape if need_supports else (0,)),
        empty((0,)),
    )


@without_autocast
def _nnd_gradient(grad: Tensor, loss: Tensor, one: Tensor, two: Tensor, three: Tensor, *inputs: Any) -> Outputs:
    *fields, backend, _, _, _, need_queries, need_supports = inputs
    queries, supports = fields[:2]
    if backend == "triton":
        problem = _student_and_teacher(*fields)[0]
        dq, ds = _engine(backend, "nnd_backward")(problem, (one, two, three), grad, need_queries, need_supports)
    else:  # the gradient was found with the value: it is only scaled here
        dq, ds = one * grad if need_queries else None, two * grad if need_supports else None
    return _or_empty(dq, queries), _or_empty(ds, supports)


@without_autocast
def _loss(*inputs: Any) -> Outputs:
    *fields, backend, views, power, need = inputs
    problem = Problem(*fields)
    check_values(problem)
    return _engine(backend, "loss_forward")(problem, views, power, need)


def _fake_loss(*inputs: Any) -> Outputs:
    *fields, _, _, _, need = inputs
    problem = Problem(*fields)
    empty = functools.partial(problem.queries.new_empty, dtype=torch.float32)
    n, k, c = problem.queries.shape[0], problem.supports.shape[0], problem.num_classes
    pulls = empty((2, n, c) if need else (0,))
    predictions = problem.queries.new_empty((n,), dtype=torch.int64)
    return empty(()), empty(()), predictions, empty((n, c)), pulls, empty((3 * n + k,))


@without_autocast
def _loss_gradient(*inputs: Any) -> Outputs:
    grads, saved, (*fields, backend, _, _, _, need_queries, need_supports) = inputs[:2], inputs[5:8], inputs[8:]
    problem = Problem(*fields)
    dq, ds = _engine(backend, "loss_backward")(problem, saved, grads, need_queries, need_supports)
    return _or_empty(dq, problem.queries), _or_empty(ds, problem.supports)


_SETTINGS = (
    "Tensor labels, Tensor? mask, int num_classes, float temperature, float smoothing, bool log, bool in_order, "
    "str backend"
)
_SNN = Pair(
    "snn", _snn, _snn_gradient, _fake_snn, f"Tensor queries, Tensor supports, {_SETTINGS}, bool keep",
    "Tensor output, Tensor state, Tensor kept",
)  # fmt: skip
_NND = Pair(
    "nnd", _nnd, _nnd_gradient, _fake_nnd,
    "Tensor queries, Tensor supports, Tensor teacher_queries, Tensor teacher_supports, "
    f"{_SETTINGS}, bool mean, bool with_queries, bool with_supports",
    "Tensor loss, Tensor one, Tensor two, Tensor three",
)  # fmt: skip
_LOSS = Pair(
    "snn_loss", _loss, _loss_gradient, _fake_loss,
    f"Tensor queries, Tensor supports, {_SETTINGS}, int views, float power, bool with_gradient",
    "Tensor cross_entropy, Tensor minus_entropy, Tensor predictions, Tensor mixed, Tensor pulls, Tensor state",
    results=2,
)  # fmt: skip
_run_snn, _run_nnd, _run_loss = differentiable(_SNN), differentiable(_NND), differentiable(_LOSS)


def snn(problem: Problem, backend: str) -> Tensor:
    """Return the class probabilities [N, C], or their logarithms."""
    if any(problem.needs_grad()) or torch.compiler.is_compiling():
        return _run_snn(*problem, backend, backend == "blockwise" and keeps(problem))[0]
    return _snn_output(problem, backend)


def nnd(student: Problem, teacher: Problem, backend: str, mean: bool) -> Tensor:
    """Return the distillation loss, a scalar, or [N] if not mean (of the "triton" back end only)."""
    queries, supports, *options = student
    vectors = queries, supports, teacher.queries, teacher.supports
    return _run_nnd(*vectors, *options, backend, mean, *student.needs_grad())[0]


def snn_loss(problem: Problem, views: int, power: float, backend: str) -> Outputs:
    """Return cross-entropy, minus entropy, and predictions [N] (of the "triton" back end only)."""
    return _run_loss(*problem, backend, views, power, any(problem.needs_grad()))[:3]
