"""Streaming soft nearest neighbours in plain torch: the CPU path, and any device without Triton.

Nothing of size N x K is kept, except for small problems where keeping the exponentials is cheaper than
recomputing them (`KEEP_LIMIT`). The backward is written by hand: see docs/kernels.md for the maths.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..reference import working_dtype
from . import whole
from .block_loop import BlockLoop, Sums, Units, gradient_factors, inverse_lengths, through_units_
from .class_rows import ClassRows

MAX_QUERIES = 1024  # queries per loop over the supports
KEEP_LIMIT = 1 << 23  # similarities (32 MiB of fp32) up to which the exponentials are kept for the backward


def _query_groups(num_queries: int, keep: bool) -> list[tuple[int, int]]:
    size = max(1, num_queries) if keep else MAX_QUERIES
    return [(i, min(i + size, num_queries)) for i in range(0, num_queries, size)]


def _used(x: Tensor, scale: Tensor, class_rows: ClassRows) -> Units:
    return Units(x, scale) if class_rows.used is None else Units(x[class_rows.used], scale[class_rows.used])


def _finish(
    grad: Tensor | None, x: Units, factor: float, class_rows: ClassRows | None = None, rows: int = 0
) -> Tensor | None:
    """Gradient of unit vectors -> of the vectors; with class rows, of all supports: those masked out get zero."""
    if grad is None:
        return None
    through_units_(grad, x, factor)
    if class_rows is None or class_rows.used is None:
        return grad
    return grad.new_zeros(rows, grad.shape[1]).index_copy_(0, class_rows.used, grad)


def _probabilities(sums: Sums, class_rows: ClassRows, smoothing: float) -> Tensor:
    """[n, C], smoothed."""
    probability = sums.probability()
    if smoothing:
        probability.mul_(1 - smoothing).add_(smoothing / class_rows.num_classes)
    return class_rows.to_classes(probability, empty=smoothing / class_rows.num_classes)


def _weights(
    grad: Tensor, mean_grad: Tensor, total: Tensor, class_rows: ClassRows, smoothing: float
) -> tuple[Tensor, Tensor | None]:
    """What a support's exponential is multiplied by, for the gradient of its logit: by row [R, n], and a bias."""
    scale = (1 - smoothing) / total
    weights = class_rows.from_classes(grad)
    if class_rows.soft:
        return weights * scale, mean_grad * -scale
    return (weights - mean_grad).mul_(scale), None


def snn_forward(
    queries: Tensor,
    supports: Tensor,
    labels: Tensor,
    mask: Tensor | None,
    num_classes: int,
    temperature: float,
    smoothing: float,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities [N, C]; the state; the exponentials [K, N] if kept.

    The state is a flat [3N + K]: total and top of each query's sums, inverse lengths of queries and supports.
    """
    dtype = working_dtype(queries, supports)
    class_rows = ClassRows(labels, mask, num_classes, dtype)
    query_scale, support_scale = inverse_lengths(queries, dtype), inverse_lengths(supports, dtype)
    kept = support_scale.new_empty((supports.shape[0], queries.shape[0]) if keep else (0, 0))
    if whole.fits(queries, class_rows, temperature):
        problem = whole.Whole(queries, query_scale, supports, support_scale, class_rows, temperature)
        sums = whole.sums(problem.exponentials(kept[: class_rows.num_supports] if keep else None), class_rows)
        pieces = sums.total, sums.total, query_scale.view(-1), support_scale.view(-1)
        state = torch.cat(pieces) if keep else sums.total
        return _probabilities(sums, class_rows, smoothing), state, kept
    query_units, support_units = Units(queries, query_scale), _used(supports, support_scale, class_rows)
    parts, totals, tops = [], [], []
    for start, stop in _query_groups(queries.shape[0], keep):
        loop = BlockLoop(query_units, start, stop, support_units, class_rows, temperature)
        sums = loop.sums(kept if keep else None)
        totals.append(sums.total)
        tops.append(sums.total if sums.top is None else sums.top)
        parts.append(_probabilities(sums, class_rows, smoothing))
    state = torch.cat([*totals, *tops, query_scale.view(-1), support_scale.view(-1)])
    if len(parts) != 1:
        return torch.cat([kept.new_empty(0, num_classes), *parts]), state, kept
    return parts[0], state, kept


def snn_backward(
    grad: Tensor,
    probabilities: Tensor,
    state: Tensor,
    kept: Tensor,
    queries: Tensor,
    supports: Tensor,
    labels: Tensor,
    mask: Tensor | None,
    num_classes: int,
    temperature: float,
    smoothing: float,
    need_queries: bool,
    need_supports: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients [N, D] and [K, D] in the working precision."""
    dtype = working_dtype(queries, supports)
    class_rows = ClassRows(labels, mask, num_classes, dtype)
    n, keep = queries.shape[0], kept.numel() > 0
    total, top, query_scale, support_scale = state.split([n, n, n, supports.shape[0]])
    # <grad, probabilities before smoothing>
    mean_grad = (grad * probabilities).sum(1)
    if smoothing:
        mean_grad -= grad.sum(1) * (smoothing / num_classes)
        mean_grad /= 1 - smoothing
    query_scale, support_scale = query_scale.unsqueeze(1), support_scale.unsqueeze(1)
    kept = kept[: class_rows.num_supports]
    if keep and whole.fits(queries, class_rows, temperature):
        problem = whole.Whole(queries, query_scale, supports, support_scale, class_rows, temperature)
        by_row = _weights(grad, mean_grad, total, class_rows, smoothing)
        return problem.gradients(whole.logit_grad(kept, *by_row, class_rows), 1.0, need_queries, need_supports)
    query_units = Units(queries, query_scale)
    support_units = _used(supports, support_scale, class_rows)
    query_grad = torch.empty_like(queries, dtype=dtype) if need_queries else None
    support_grad = torch.empty_like(support_units.raw, dtype=dtype) if need_supports else None
    for start, stop in _query_groups(n, keep):
        loop = BlockLoop(query_units, start, stop, support_units, class_rows, temperature)
        shift = top[None, start:stop] if loop.cold else None
        rows = slice(start, stop)
        weights, bias = _weights(grad[rows], mean_grad[rows], total[rows], class_rows, smoothing)
        part = None if query_grad is None else query_grad[start:stop]
        loop.gradients(weights, bias, shift, kept if keep else None, part, support_grad, add_to_supports=start > 0)
    query_factor, support_factor = gradient_factors(temperature)
    query_grad = _finish(query_grad, query_units, query_factor)
    return query_grad, _finish(support_grad, support_units, support_factor, class_rows, supports.shape[0])


def _cross_entropy(
    teacher: Sums, student: Sums, class_rows: ClassRows, smoothing: float
) -> tuple[Tensor, Callable[[], tuple[Tensor, Tensor | None]]]:
    """The sum over queries of -sum_c w'_c log w_c, and how to get the weights and bias of its gradient.

    The gradient of the loss with respect to w_c is -w'_c / w_c, and a support's probability is its exponential
    times `scale`. Without smoothing scale / w_c is just 1 / mass_c: no quotient of two tiny numbers is formed.
    """
    target = teacher.probability()
    if not smoothing:
        absent = target == 0
        loss = -(student.log_probability().masked_fill_(absent, 0).mul_(target)).sum()

        def weights() -> tuple[Tensor, Tensor | None]:
            pull = (target / student.mass).masked_fill_(absent, 0).neg_()
            return _with_bias(pull, target.sum(0) * student.scale(), class_rows)

        return loss, weights

    keep, uniform = 1 - smoothing, smoothing / class_rows.num_classes
    target.mul_(keep).add_(uniform)
    probability = student.probability().mul_(keep).add_(uniform)
    without_row = class_rows.num_classes - class_rows.count
    constant = without_row * target.shape[1] * uniform * math.log(uniform)
    loss = -(probability.log().mul_(target)).sum() - constant

    def smoothed_weights() -> tuple[Tensor, Tensor | None]:
        ratio, scale = target / probability, student.scale()
        mean_grad = (ratio * (probability - uniform)).sum(0)
        return _with_bias(ratio.mul_(scale * -keep), mean_grad * scale, class_rows)

    return loss, smoothed_weights


def _with_bias(weights: Tensor, bias: Tensor, class_rows: ClassRows) -> tuple[Tensor, Tensor | None]:
    """With integer labels the bias of every support can be part of its row's weight."""
    return (weights, bias.squeeze(0)) if class_rows.soft else (weights.add_(bias), None)


def nnd(
    queries: Tensor,
    supports: Tensor,
    teacher_queries: Tensor,
    teacher_supports: Tensor,
    labels: Tensor,
    mask: Tensor | None,
    num_classes: int,
    temperature: float,
    smoothing: float,
    need_queries: bool,
    need_supports: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The loss and its gradients [N, D] and [K, D], all in the working precision."""
    dtype = working_dtype(queries, supports, teacher_queries, teacher_supports)
    class_rows = ClassRows(labels, mask, num_classes, dtype)
    query_scale, support_scale = inverse_lengths(queries, dtype), inverse_lengths(supports, dtype)
    teacher_scales = inverse_lengths(teacher_queries, dtype), inverse_lengths(teacher_supports, dtype)
    if whole.fits(queries, class_rows, temperature):
        problem = whole.Whole(
            teacher_queries, teacher_scales[0], teacher_supports, teacher_scales[1], class_rows, temperature
        )
        teacher = whole.sums(problem.exponentials(), class_rows)
        problem = whole.Whole(queries, query_scale, supports, support_scale, class_rows, temperature)
        values = problem.exponentials()
        loss, weights = _cross_entropy(teacher, whole.sums(values, class_rows), class_rows, smoothing)
        mean = 1 / queries.shape[0]
        if not (need_queries or need_supports):
            return loss * mean, None, None
        grad = whole.logit_grad(values, *weights(), class_rows)
        return loss * mean, *problem.gradients(grad, mean, need_queries, need_supports)
    query_units, support_units = Units(queries, query_scale), _used(supports, support_scale, class_rows)
    teacher_query_units = Units(teacher_queries, teacher_scales[0])
    teacher_support_units = _used(teacher_supports, teacher_scales[1], class_rows)
    query_grad = torch.empty_like(queries, dtype=dtype) if need_queries else None
    support_grad = torch.empty_like(support_units.raw, dtype=dtype) if need_supports else None
    losses = []
    for start, stop in _query_groups(queries.shape[0], keep=False):
        teacher = BlockLoop(teacher_query_units, start, stop, teacher_support_units, class_rows, temperature).sums()
        loop = BlockLoop(query_units, start, stop, support_units, class_rows, temperature)
        keep = (need_queries or need_supports) and (stop - start) * class_rows.num_supports <= KEEP_LIMIT
        kept = loop.buffer(class_rows.num_supports) if keep else None
        student = loop.sums(kept)
        loss, weights = _cross_entropy(teacher, student, class_rows, smoothing)
        losses.append(loss)
        if need_queries or need_supports:
            part = None if query_grad is None else query_grad[start:stop]
            loop.gradients(*weights(), student.shift, kept, part, support_grad, add_to_supports=start > 0)
    query_factor, support_factor = (factor / queries.shape[0] for factor in gradient_factors(temperature))
    query_grad = _finish(query_grad, query_units, query_factor)
    support_grad = _finish(support_grad, support_units, support_factor, class_rows, supports.shape[0])
    return torch.stack(losses).sum() / queries.shape[0], query_grad, support_grad
