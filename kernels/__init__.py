"""Soft nearest neighbours and their distillation loss, memory-efficient, on CPU and GPU.

    from nncsl.kernels import snn, nnd_loss, snn_loss       # in a checkout `from kernels import ...` too

    probabilities = snn(queries, supports, labels, num_classes=10)          # [N, D], [K, D], [K] -> [N, C]
    loss = nnd_loss(queries, supports, teacher_queries, teacher_supports, labels, num_classes=10)
    cross_entropy, minus_entropy, predictions = snn_loss(views, supports, labels, num_classes=10)
    similarities, indices = neighbors(queries, supports, 2)                 # [N, 2] each, without gradient

Inputs need not be normalized: similarities are cosines, with torch's `normalize` convention for vectors of
length zero. fp32, fp16 and bf16 are computed and returned in fp32 (also under autocast), fp64 in fp64. NaN and
inf propagate. The losses and `snn` are differentiable once, in queries and supports only.
"""

import functools
from typing import Any

import torch
from torch import Tensor

from . import batches, checks, choice, nearest, ops, reference
from .choice import backends
from .objective import SnnLoss, objective
from .prepared import Prepared, prepare
from .problem import Problem

__all__ = ["Prepared", "SnnLoss", "backends", "neighbors", "nnd_loss", "prepare", "snn", "snn_loss"]


def snn(
    queries: Tensor,
    supports: Tensor | Prepared,
    labels: Tensor | None = None,
    *,
    num_classes: int | None = None,
    temperature: float = 0.1,
    smoothing: float = 0.0,
    mask: Tensor | None = None,
    return_log: bool = False,
    backend: str = "auto",
) -> Tensor:
    """Return class probabilities [N, C] of the queries: softmax(cos(queries, supports) / temperature) @ labels.

    queries [N, D], supports [K, D]; labels [K] integers in [0, C), or [K, C] floating class weights. All may have
        the same leading dimensions, or none; the result has them too. supports may be what `prepare` returned.
    num_classes: C; None takes the largest label + 1 (which waits for the device if labels are on a GPU, and
        can't be compiled: pass it there).
    smoothing: a, turns labels y into (1 - a) y + a / C. Without it a class without supports has probability 0.
    mask: [K] bool, True where the support is used; the others have no influence and get gradient 0.
    return_log: return logarithms, right also where a probability is too small for fp32; -inf for probability 0.
    backend: "auto", or one of `backends()`.
    """
    options = num_classes, temperature, smoothing
    if batches.leads(queries, supports):
        arguments = _arguments(queries, supports, labels, mask)
        lead = batches.leading(arguments)
        again = functools.partial(snn, **_named(*options), return_log=return_log, backend=backend)
        if not batches.leads(supports):
            flat = again(queries=queries.flatten(0, -2), supports=supports, labels=labels, mask=mask)
            return flat.unflatten(0, (*lead, -1))
        return batches.one_by_one(again, arguments, lead)
    problem = _problem(queries, supports, labels, mask, *options)
    return _snn(problem._replace(log=True) if return_log else problem, backend)


def nnd_loss(
    queries: Tensor,
    supports: Tensor,
    teacher_queries: Tensor,
    teacher_supports: Tensor,
    labels: Tensor,
    *,
    num_classes: int | None = None,
    temperature: float = 0.1,
    smoothing: float = 0.0,
    mask: Tensor | None = None,
    reduction: str = "mean",
    backend: str = "auto",
) -> Tensor:
    """Return the distillation loss: the mean over queries of -sum_c w'_c log w_c, a scalar.

    w = snn(queries, supports, ...) is the student's view of the supports, w' = snn(teacher_queries,
    teacher_supports, ...) the teacher's, in which nothing is differentiated. Teacher tensors have the shapes
    [N, D'] and [K, D'] (D' may differ from D). A class without supports adds nothing. Other arguments as in `snn`.
    reduction: "mean", or "none" for the loss of each query, [N].
    """
    if reduction not in ("mean", "none"):
        raise ValueError(f"reduction must be 'mean' or 'none', got {reduction!r}")
    options = num_classes, temperature, smoothing
    if batches.leads(queries, supports):
        arguments = _arguments(queries, supports, labels, mask)
        arguments |= {"teacher_queries": (teacher_queries, 2), "teacher_supports": (teacher_supports, 2)}
        again = functools.partial(nnd_loss, **_named(*options), reduction=reduction, backend=backend)
        found = batches.one_by_one(again, arguments, batches.leading(arguments))
        return found.mean() if reduction == "mean" else found
    student = _problem(queries, supports, labels, mask, *options)
    checks.check_teacher(queries, supports, teacher_queries, teacher_supports)
    teacher = student._replace(queries=teacher_queries.detach(), supports=teacher_supports.detach())
    chosen = choice.choose(backend, student, teacher)
    if chosen == "reference":
        checks.check_values(student)
        losses = ops.without_autocast(reference.nnd_loss)(student, teacher)
        return losses.mean() if reduction == "mean" else losses
    if reduction == "none" and chosen == "blockwise":
        target = _snn(teacher, chosen).detach()
        logs = _snn(student._replace(log=True), chosen)
        return -(target * torch.where(target == 0, 0.0, logs)).sum(1)
    return ops.nnd(student, teacher, chosen, mean=reduction == "mean")


def snn_loss(
    queries: Tensor,
    supports: Tensor | Prepared,
    labels: Tensor | None = None,
    *,
    small_views: int = 2,
    sharpening: float = 0.25,
    num_classes: int | None = None,
    temperature: float = 0.1,
    smoothing: float = 0.0,
    mask: Tensor | None = None,
    backend: str = "auto",
) -> SnnLoss:
    """Return the semi-supervised objective of several views of N images, and the class that each view is taken for.

    queries [(2 + small_views) N, D]: all first large views, all second large views, then all small views of each
    kind. With v = snn(queries, ...) and v sharpened to v^(1 / sharpening), normalized:
    cross_entropy: the mean over views of -sum_c target_c log v_c. Targets are sharpened and not differentiated.
        The large views are each other's target, a small view's is their mean; entries under 1e-4 then count as 0.
    minus_entropy: sum_c m_c log m_c of the mean m over views of sharpened v.
    predictions: int64 [(2 + small_views) N], the most probable class of each view.
    Other arguments as in `snn`.
    """
    if small_views < 0:
        raise ValueError(f"small_views must be >= 0, got {small_views}")
    if not 0 < sharpening <= 1:
        raise ValueError(f"sharpening must be in (0, 1], got {sharpening}")
    problem = _problem(queries, supports, labels, mask, num_classes, temperature, smoothing)
    if queries.shape[0] == 0 or queries.shape[0] % (2 + small_views):
        raise ValueError(
            f"queries must have a multiple of {2 + small_views} rows (2 large and {small_views} small views "
            f"of each image), got shape {list(queries.shape)}"
        )
    if choice.choose(backend, problem) == "triton":
        return SnnLoss(*ops.snn_loss(problem, 2 + small_views, 1 / sharpening, "triton"))
    plain = choice.requested(backend) == "reference"
    if plain or (problem.cold and not problem.smoothing):  # probabilities may be too small for fp32
        log_p = _snn(problem._replace(log=True), backend)
        cross_entropy, minus_entropy = reference.objective(log_p, small_views, 1 / sharpening)
        return SnnLoss(cross_entropy, minus_entropy, predictions=log_p.detach().argmax(dim=1))
    p = _snn(problem, backend)
    cross_entropy, minus_entropy, *_ = objective(p, small_views, 1 / sharpening, any(problem.needs_grad()))
    return SnnLoss(cross_entropy, minus_entropy, predictions=p.detach().argmax(dim=1))


@torch.no_grad()
def neighbors(queries: Tensor, supports: Tensor, k: int, *, block: int = 4096) -> tuple[Tensor, Tensor]:
    """Return the k most similar supports of each query: cosines [N, k], the largest first, and their rows [N, k].

    queries [N, D], supports [K, D]. Exact: all supports are compared, `block` of them at a time. Of equally similar
    ones the lower row comes first. Meant for few neighbors; a cosine that is NaN counts as the largest.
    """
    checks.check_pair(queries, supports)
    checks.check_neighbors(k, block, supports)
    return ops.without_autocast(nearest.most_similar)(queries, supports, k, block)


def _arguments(queries: Tensor, supports: Any, labels: Tensor | None, mask: Tensor | None) -> batches.Arguments:
    """Return the arguments and how many dimensions they have if none lead."""
    soft = isinstance(labels, Tensor) and labels.is_floating_point()
    return {"queries": (queries, 2), "supports": (supports, 2), "labels": (labels, 1 + soft), "mask": (mask, 1)}


def _named(num_classes: int | None, temperature: float, smoothing: float) -> dict[str, Any]:
    return {"num_classes": num_classes, "temperature": temperature, "smoothing": smoothing}


def _problem(
    queries: Tensor, supports: Any, labels: Any, mask: Tensor | None,
    num_classes: int | None, temperature: float, smoothing: float,
) -> Problem:  # fmt: skip
    """Return checked arguments as a problem."""
    if not isinstance(supports, Prepared):
        return checks.checked_problem(queries, supports, labels, mask, num_classes, temperature, smoothing)
    if labels is not None or mask is not None or num_classes not in (None, supports.num_classes):
        raise ValueError("labels, mask and num_classes belong to `prepare`: leave them out with prepared supports")
    problem = checks.checked_problem(queries, *supports[:2], None, supports.num_classes, temperature, smoothing)
    return problem._replace(in_order=True)


def _snn(problem: Problem, backend: str) -> Tensor:
    chosen = choice.choose(backend, problem)
    if chosen == "reference":
        checks.check_values(problem)
        return ops.without_autocast(reference.snn)(problem)
    return ops.snn(problem, chosen)
