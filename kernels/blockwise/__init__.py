"""Streaming soft nearest neighbours in plain torch: the CPU path, and any device without Triton.

Nothing of size N x K is kept, except for small problems where keeping the exponentials is cheaper than
recomputing them (`KEEP_LIMIT`). The backward is written by hand: see docs/kernels.md for the maths.
"""

import math

import torch
from torch import Tensor

from ..problem import Forward, Problem, working_dtype
from .block_loop import BlockLoop, gradient_factors
from .class_rows import ClassRows, Weights
from .sums import Sums, cross_entropy
from .units import Side, inverse_lengths, through_units_
from .whole import Whole, fits

MAX_QUERIES = 1024  # queries per loop over the supports
KEEP_LIMIT = 1 << 23  # similarities (32 MiB of fp32) up to which the exponentials are kept for the backward

Gradients = tuple[Tensor | None, Tensor | None]
"""Of queries [N, D] and supports [K, D] in the working precision; None where not needed."""


def _query_groups(num_queries: int, keep: bool) -> list[tuple[int, int]]:
    size = max(1, num_queries) if keep else MAX_QUERIES
    return [(i, min(i + size, num_queries)) for i in range(0, num_queries, size)]


def _probabilities(sums: Sums, class_rows: ClassRows, smoothing: float) -> Tensor:
    """Return smoothed probabilities [n, C]."""
    probability = sums.probability()
    if smoothing:
        probability.mul_(1 - smoothing).add_(smoothing / class_rows.num_classes)
    return class_rows.to_classes(probability, empty=smoothing / class_rows.num_classes)


def _log_probabilities(sums: Sums, class_rows: ClassRows, smoothing: float) -> Tensor:
    """Return logarithms of smoothed probabilities [n, C]."""
    if smoothing or class_rows.soft:
        return _probabilities(sums, class_rows, smoothing).log_()
    return class_rows.to_classes(sums.log_probability(), empty=-math.inf)


def _weights_of_grad(
    grad: Tensor, output: Tensor, total: Tensor, class_rows: ClassRows, problem: Problem
) -> Weights:  # fmt: skip
    """Return the weights of exponentials in units of `total`, given the gradient of the output [n, C]."""
    smoothing = problem.smoothing
    if problem.log:  # d log w = d w / w; a class of probability 0 has no gradient
        output = output.exp()
        grad = torch.where(output == 0, 0.0, grad / output)
    # <grad, probabilities before smoothing>
    mean_grad = (grad * output).sum(1)
    if smoothing:
        mean_grad -= grad.sum(1) * (smoothing / problem.num_classes)
        mean_grad /= 1 - smoothing
    scale = (1 - smoothing) / total
    weights = class_rows.from_classes(grad)
    if class_rows.soft:
        return weights * scale, mean_grad * -scale
    return (weights - mean_grad).mul_(scale), None


def _weights_of_log_grad(
    grad: Tensor, output: Tensor, total: Tensor, top: Tensor | None, class_rows: ClassRows
) -> tuple[Tensor, Weights]:  # fmt: skip
    """Return log2 of the class masses [R, n], and the weights of exponentials in these units.

    An exponential is then a support's share of its class, however small the class's probability exp(output) is.
    """
    log_mass = class_rows.from_classes(output) * math.log2(math.e) + total.log2()
    if top is not None:
        log_mass += top
    weights = class_rows.from_classes(grad - output.exp() * grad.sum(1, keepdim=True))
    return log_mass, (weights, None)


def _room_for_gradients(side: Side, need_queries: bool, need_supports: bool) -> Gradients:
    """Return room for the gradients of the queries and of the used supports, to be written by the loops."""
    query_grad = side.queries.empty_grad() if need_queries else None
    support_grad = side.supports.empty_grad() if need_supports else None
    if support_grad is not None and not len(side.queries.raw):  # no loop
        support_grad.zero_()
    return query_grad, support_grad


def _finished(query_grad: Tensor | None, support_grad: Tensor | None, side: Side, count: int) -> Gradients:
    """Return 1 / count of the gradients of the vectors, given what the loops have made of those of unit vectors."""
    query_factor, support_factor = gradient_factors(side.temperature)
    if query_grad is not None:
        through_units_(query_grad, side.queries, query_factor / count)
    if support_grad is not None:
        through_units_(support_grad, side.supports, support_factor / count)
    return query_grad, side.class_rows.for_all(support_grad)


def _forward(problem: Problem, kept: Tensor | None) -> tuple[Tensor, list[Tensor]]:
    """Return the probabilities [N, C] and what the state is made of; `kept` [K, N], if given, gets the exponentials."""
    dtype = working_dtype(problem)
    class_rows = ClassRows(problem, dtype)
    query_scale, support_scale = inverse_lengths(problem.queries, dtype), inverse_lengths(problem.supports, dtype)
    side = Side.of(problem, query_scale, support_scale, class_rows)
    if not problem.log and fits(problem, class_rows):
        whole = Whole(side)
        sums = whole.sums(whole.exponentials(None if kept is None else kept[: class_rows.num_supports]))
        output = _probabilities(sums, class_rows, problem.smoothing)
        return output, [sums.total, sums.total, query_scale, support_scale]
    finish = _log_probabilities if problem.log else _probabilities
    n, totals, tops = problem.queries.shape[0], [], []
    output = query_scale.new_empty(n, problem.num_classes)
    for start, stop in _query_groups(n, keep=kept is not None):
        sums = BlockLoop(side, start, stop).sums(kept)
        totals.append(sums.total)
        tops += [] if sums.top is None else [sums.top]
        output[start:stop] = finish(sums, class_rows, problem.smoothing)
    return output, [*totals, *(tops or totals), query_scale, support_scale]


def snn_output(problem: Problem) -> Tensor:
    """Return the probabilities [N, C], or their logarithms, with nothing for a gradient."""
    return _forward(problem, None)[0]


def snn_forward(problem: Problem, keep: bool) -> Forward:
    """Return the probabilities [N, C], the state, and the exponentials [K, N] if they are to be kept.

    The state is a flat [3N + K]: total and top of each query's sums, inverse lengths of queries and supports.
    """
    n, k = problem.queries.shape[0], problem.supports.shape[0]
    kept = problem.queries.new_empty((k, n) if keep else (0, 0), dtype=working_dtype(problem))
    output, parts = _forward(problem, kept if keep else None)
    return Forward(output, torch.cat([part.view(-1) for part in parts]), kept)


def snn_backward(
    problem: Problem, forward: Forward, keep: bool, grad: Tensor, need_queries: bool, need_supports: bool
) -> Gradients:
    """Return the gradients of the vectors, given that of the output [N, C]."""
    n = problem.queries.shape[0]
    class_rows = ClassRows(problem, working_dtype(problem))
    total, top, query_scale, support_scale = forward.state.split([n, n, n, problem.supports.shape[0]])
    side = Side.of(problem, query_scale.unsqueeze(1), support_scale.unsqueeze(1), class_rows)
    kept = forward.kept[: class_rows.num_supports] if keep else None
    if kept is not None and fits(problem, class_rows):
        weights = _weights_of_grad(grad, forward.output, total, class_rows, problem)
        return Whole(side).gradients(kept, weights, 1.0, need_queries, need_supports)
    query_grad, support_grad = _room_for_gradients(side, need_queries, need_supports)
    for start, stop in _query_groups(n, keep):
        part = slice(start, stop)
        shift = top[None, part] if problem.cold else None
        if problem.log and not problem.smoothing and not class_rows.soft:
            shift, weights = _weights_of_log_grad(grad[part], forward.output[part], total[part], shift, class_rows)
        else:
            weights = _weights_of_grad(grad[part], forward.output[part], total[part], class_rows, problem)
        into = None if query_grad is None else query_grad[part]
        BlockLoop(side, start, stop).gradients(weights, shift, kept, into, support_grad)
    return _finished(query_grad, support_grad, side, 1)


def nnd(
    student: Problem, teacher: Problem, need_queries: bool, need_supports: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return the loss and its gradients, all in the working precision."""
    dtype = working_dtype(student, teacher)
    class_rows = ClassRows(student, dtype)
    ours, theirs = (
        Side.of(problem, inverse_lengths(problem.queries, dtype), inverse_lengths(problem.supports, dtype), class_rows)
        for problem in (student, teacher)
    )
    n, need_any = student.queries.shape[0], need_queries or need_supports
    if fits(student, class_rows):
        whole = Whole(theirs)
        target = whole.sums(whole.exponentials())
        whole = Whole(ours)
        values = whole.exponentials()
        loss, weights = cross_entropy(target, whole.sums(values), class_rows, student.smoothing)
        if not need_any:
            return loss * (1 / n), None, None
        return loss * (1 / n), *whole.gradients(values, weights(), 1 / n, need_queries, need_supports)
    query_grad, support_grad = _room_for_gradients(ours, need_queries, need_supports)
    losses = []
    for start, stop in _query_groups(n, keep=False):
        target = BlockLoop(theirs, start, stop).sums()
        loop = BlockLoop(ours, start, stop)
        keep = need_any and (stop - start) * class_rows.num_supports <= KEEP_LIMIT
        kept = loop.buffer(class_rows.num_supports) if keep else None
        sums = loop.sums(kept)
        loss, weights = cross_entropy(target, sums, class_rows, student.smoothing)
        losses.append(loss)
        if need_any:
            into = None if query_grad is None else query_grad[start:stop]
            loop.gradients(weights(), sums.shift, kept, into, support_grad)
    return torch.stack(losses).sum() / n, *_finished(query_grad, support_grad, ours, n)
