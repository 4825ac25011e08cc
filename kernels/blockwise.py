"""Streaming soft nearest neighbours in plain torch: the CPU path, and any device without Triton.

Nothing of size N x K is kept, except for small problems where keeping the exponentials is cheaper than
recomputing them (`KEEP_LIMIT`). The backward is written by hand: see docs/kernels.md for the maths.
"""

import math

import torch
from torch import Tensor

from kernels.labels import Slots
from kernels.reference import working_dtype
from kernels.sweep import Sums, Sweep, through_units_, units

MAX_QUERIES = 1024  # queries per sweep over the supports
KEEP_LIMIT = 1 << 23  # similarities (32 MiB of fp32) up to which the exponentials are kept for the backward


def _query_groups(num_queries: int, keep: bool) -> list[slice]:
    size = max(1, num_queries) if keep else MAX_QUERIES
    return [slice(i, min(i + size, num_queries)) for i in range(0, num_queries, size)]


def _used(supports: Tensor, slots: Slots) -> Tensor:
    return supports if slots.rows is None else supports[slots.rows]


def _to_all_supports(grad: Tensor, supports: Tensor, slots: Slots) -> Tensor:
    """Gradients of the used supports -> of all supports: those masked out get zero."""
    if slots.rows is None:
        return grad
    return grad.new_zeros(supports.shape).index_copy_(0, slots.rows, grad)


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
    """Probabilities [N, C]; total and top of each query's sums [2, N]; the exponentials [K, N] if kept."""
    dtype = working_dtype(queries, supports)
    slots = Slots(labels, mask, num_classes, dtype)
    query_units, support_units = units(queries, dtype), units(_used(supports, slots), dtype)
    kept = support_units.scale.new_empty((len(supports), len(queries)) if keep else (0, 0))
    state = support_units.scale.new_zeros(2, len(queries))
    parts = []
    for group in _query_groups(len(queries), keep):
        sweep = Sweep(query_units[group], support_units, slots, temperature)
        sums = sweep.sums(kept if keep else None)
        state[0, group] = sums.total
        if sums.top is not None:
            state[1, group] = sums.top
        probability = (sums.mass * sums.scale()).mul_(1 - smoothing)
        if smoothing:
            probability += smoothing / num_classes
        parts.append(slots.to_classes(probability, empty=smoothing / num_classes))
    if len(parts) != 1:
        parts = [torch.cat(parts) if parts else kept.new_empty(0, num_classes)]
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
    slots = Slots(labels, mask, num_classes, dtype)
    query_units, support_units = units(queries, dtype), units(_used(supports, slots), dtype)
    keep = kept.numel() > 0
    query_grad = torch.zeros_like(queries, dtype=dtype) if need_queries else None
    support_grad = torch.zeros_like(support_units.raw, dtype=dtype) if need_supports else None
    # <grad, probabilities before smoothing>, up to the factor 1 - smoothing that all weights share
    mean_grad = torch.linalg.vecdot(grad, probabilities)
    if smoothing:
        mean_grad -= grad.sum(1) * (smoothing / num_classes)
        mean_grad /= 1 - smoothing
    for group in _query_groups(len(queries), keep):
        sweep = Sweep(query_units[group], support_units, slots, temperature)
        scale = (1 - smoothing) / state[0, group]
        shift = state[1:, group] if sweep.cold else None
        weights, bias = slots.from_classes(grad[group]), None
        if slots.soft:
            weights, bias = weights * scale, mean_grad[group] * -scale
        else:
            weights = (weights - mean_grad[group]).mul_(scale)
        sweep.gradients(
            weights,
            bias,
            shift,
            kept[: slots.num_supports] if keep else None,
            None if query_grad is None else query_grad[group],
            support_grad,
        )
    if query_grad is not None:
        through_units_(query_grad, query_units, 1 / temperature)
    if support_grad is not None:
        through_units_(support_grad, support_units, 1 / temperature)
        support_grad = _to_all_supports(support_grad, supports, slots)
    return query_grad, support_grad


def _cross_entropy(
    teacher: Sums, student: Sums, slots: Slots, smoothing: float
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The sum over queries of -sum_c w'_c log w_c, and the weights and bias of its gradient (see Sweep.gradients).

    The gradient of the loss with respect to w_c is -w'_c / w_c, and a support's probability is its exponential
    times `scale`. Without smoothing scale / w_c is just 1 / mass_c: no quotient of two tiny numbers is formed.
    """
    uniform = smoothing / slots.num_classes
    scale = student.scale()
    target = (teacher.mass * teacher.scale()).mul_(1 - smoothing).add_(uniform)
    if smoothing:
        probability = (student.mass * scale).mul_(1 - smoothing).add_(uniform)
        log_probability = probability.log()
        per_mass = scale / probability * (1 - smoothing)
        mean_grad = (target * (probability - uniform) / probability).sum(0)
    else:
        absent = target == 0
        log_probability = student.log_probability().masked_fill_(absent, 0)
        per_mass = student.mass.reciprocal().masked_fill_(absent, 0)
        mean_grad = target.sum(0)
    loss = -(target * log_probability).sum()
    if smoothing:
        without_slot = slots.num_classes - slots.count
        loss -= without_slot * target.shape[1] * uniform * math.log(uniform)
    weights = target.mul_(per_mass).neg_()
    bias = mean_grad * scale
    return (loss, weights, bias.squeeze(0)) if slots.soft else (loss, weights.add_(bias), None)


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
    slots = Slots(labels, mask, num_classes, dtype)
    query_units, support_units = units(queries, dtype), units(_used(supports, slots), dtype)
    teacher_query_units = units(teacher_queries, dtype)
    teacher_support_units = units(_used(teacher_supports, slots), dtype)
    query_grad = torch.zeros_like(queries, dtype=dtype) if need_queries else None
    support_grad = torch.zeros_like(support_units.raw, dtype=dtype) if need_supports else None
    loss = torch.zeros((), dtype=dtype, device=queries.device)
    needed = need_queries or need_supports
    for group in _query_groups(len(queries), keep=False):
        teacher = Sweep(teacher_query_units[group], teacher_support_units, slots, temperature).sums()
        sweep = Sweep(query_units[group], support_units, slots, temperature)
        size = len(sweep.queries)
        kept = None
        if needed and not sweep.cold and size * slots.num_supports <= KEEP_LIMIT:
            kept = sweep.queries.new_empty(slots.num_supports, size)
        student = sweep.sums(kept)
        group_loss, weights, bias = _cross_entropy(teacher, student, slots, smoothing)
        loss += group_loss
        if needed:
            part = None if query_grad is None else query_grad[group]
            sweep.gradients(weights, bias, student.shift, kept, part, support_grad)
    factor = 1 / (temperature * len(queries))
    if query_grad is not None:
        through_units_(query_grad, query_units, factor)
    if support_grad is not None:
        through_units_(support_grad, support_units, factor)
        support_grad = _to_all_supports(support_grad, supports, slots)
    return loss / len(queries), query_grad, support_grad
