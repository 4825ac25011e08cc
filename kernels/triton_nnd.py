"""The distillation loss on GPUs: value and both gradients in one launch for few supports, else by class segments."""

# The arguments of Triton kernels have no Python types.
# mypy: disable-error-code="no-untyped-def"

import torch
import triton
import triton.language as tl
from torch import Tensor

from .problem import Problem
from .reference import EPS
from .triton_snn import LOG2_E, Segments, is_half, padded, through_units, tile_shape
from .triton_tiles import inverse_length, load_by_class, load_rows, log_total


@triton.jit
def unit_side(
    queries, supports, n, k, valid_queries, valid_supports,
    D: tl.constexpr, DP: tl.constexpr, HALF: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """Raw queries in fp32 with their inverse lengths, and unit supports in the type of the products."""
    q = load_rows(queries, n, valid_queries, D, DP).to(tl.float32)
    s = load_rows(supports, k, valid_supports, D, DP).to(tl.float32)
    s *= inverse_length(s, EPS)[:, None]
    return q, inverse_length(q, EPS), s.to(tl.float16) if HALF else s


@triton.jit
def exponentials(q, q_scale, s, used, same, scale, HALF: tl.constexpr, PRECISION: tl.constexpr):
    """Exponentials of the used supports [BN, BK], their sum over each support's class [BN, BK], and over all [BN]."""
    unit = q * q_scale[:, None]
    unit = unit.to(tl.float16) if HALF else unit
    logits = tl.dot(unit, tl.trans(s), input_precision=PRECISION) * scale
    values = tl.where(used[None, :], tl.exp2(logits), 0.0)
    return values, tl.dot(values, same, input_precision=PRECISION), tl.sum(values, axis=1), unit


@triton.jit
def small_nnd_kernel(
    queries, supports, teacher_queries, teacher_supports, labels, mask, losses, query_grad, support_grad,
    n_queries, n_supports, n_classes, scale, keep, uniform, query_factor,
    D: tl.constexpr, DP: tl.constexpr, TD: tl.constexpr, TDP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    HALF: tl.constexpr, TEACHER_HALF: tl.constexpr, MASKED: tl.constexpr, SMOOTH: tl.constexpr,
    NEED_Q: tl.constexpr, NEED_S: tl.constexpr, PRECISION: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """BN queries against all supports. The classes never appear: what is needed of a support's class is a sum over
    the supports of the same label, a product with the 0/1 matrix `same`."""
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    valid = n < n_queries
    used = k < n_supports
    if MASKED:
        used &= tl.load(mask + k, mask=used, other=0) != 0
    label = tl.load(labels + k, mask=used, other=-1)
    same = ((label[:, None] == label[None, :]) & used[:, None] & used[None, :]).to(tl.float32)
    once = tl.where(used, 1.0 / tl.maximum(tl.sum(same, axis=0), 1.0), 0.0)  # sums to 1 over each class

    # Both operands of the small products with `same` are fp32, hence their own precision.
    q, q_scale, s = unit_side(
        teacher_queries, teacher_supports, n, k, valid, used, TD, TDP, TEACHER_HALF, EPS
    )  # fmt: skip
    values, mass, total, unit = exponentials(q, q_scale, s, used, same, scale, TEACHER_HALF, PRECISION)
    target = keep * (mass / total[:, None]) + uniform

    q, q_scale, s = unit_side(queries, supports, n, k, valid, used, D, DP, HALF, EPS)
    values, mass, total, unit = exponentials(q, q_scale, s, used, same, scale, HALF, PRECISION)
    # The class's smoothed probability is predicted / total; without smoothing it is mass / total.
    predicted = tl.where(used[None, :], keep * mass + uniform * total[:, None], 1.0)
    entropies = once[None, :] * target * (tl.log(predicted) - tl.log(total)[:, None])
    loss = -tl.sum(tl.where(used[None, :], entropies, 0.0), axis=1)
    if SMOOTH:
        loss -= (n_classes - tl.sum(once, axis=0)) * uniform * tl.log(uniform)
    tl.store(losses + n, loss, mask=valid)

    ratio = keep * target / predicted
    mean = tl.sum(tl.where(used[None, :], once[None, :] * ratio * mass, 0.0), axis=1)
    grad = values * ((mean / total)[:, None] - ratio)
    grad = tl.where(valid[:, None] & used[None, :], grad, 0.0)
    if HALF:
        grad = grad.to(tl.float16)
    columns = tl.arange(0, DP)
    if NEED_S:
        rows = tl.program_id(0).to(tl.int64) * n_supports + k
        where = support_grad + rows[:, None] * D + columns[None, :]
        value = tl.dot(tl.trans(grad), unit, input_precision=PRECISION)
        tl.store(where, value, mask=(k < n_supports)[:, None] & (columns < D)[None, :])
    if NEED_Q:
        value = tl.dot(grad, s, input_precision=PRECISION)
        along = tl.sum(q * value, axis=1) * q_scale * q_scale
        along = tl.where(q_scale < 1.0 / EPS, along, 0.0)  # a vector shorter than EPS is only divided by a constant
        value = (value - q * along[:, None]) * (q_scale * query_factor)[:, None]
        where = query_grad + n.to(tl.int64)[:, None] * D + columns[None, :]
        tl.store(where, value, mask=valid[:, None] & (columns < D)[None, :])


@triton.jit
def loss_kernel(
    teacher_mass, student_mass, losses, weights, n_queries, n_classes, keep, uniform,
    SMOOTH: tl.constexpr, BN: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """From log2 of the sums per class [C, N]: the loss per query, and the weights of its gradient [C, N]."""
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    teacher_total = log_total(teacher_mass, n, n_classes, n_queries, BN, BC)
    student_total = log_total(student_mass, n, n_classes, n_queries, BN, BC)
    loss = tl.zeros((BN,), tl.float32)
    mean = tl.zeros((BN,), tl.float32)
    for c0 in range(0, n_classes, BC):
        c = c0 + tl.arange(0, BC)
        log_target = load_by_class(teacher_mass, c, n, n_classes, n_queries, -float("inf")) - teacher_total[None, :]
        log_o = load_by_class(student_mass, c, n, n_classes, n_queries, -float("inf")) - student_total[None, :]
        target, o = tl.exp2(log_target), tl.exp2(log_o)
        if SMOOTH:
            target, w = keep * target + uniform, keep * o + uniform
            real = (c < n_classes)[:, None]
            loss -= tl.sum(tl.where(real, target * tl.log(w), 0.0), axis=0)
            mean += tl.sum(tl.where(real, keep * target / w * o, 0.0), axis=0)
        else:
            loss -= tl.sum(tl.where(target == 0.0, 0.0, target * log_o), axis=0) * 0.6931471805599453
            mean += tl.sum(target, axis=0)
    tl.store(losses + n, loss, mask=n < n_queries)
    for c0 in range(0, n_classes, BC):
        c = c0 + tl.arange(0, BC)
        log_target = load_by_class(teacher_mass, c, n, n_classes, n_queries, -float("inf")) - teacher_total[None, :]
        log_o = load_by_class(student_mass, c, n, n_classes, n_queries, -float("inf")) - student_total[None, :]
        target, o = tl.exp2(log_target), tl.exp2(log_o)
        pull = target
        if SMOOTH:
            pull = keep * (keep * target + uniform) / (keep * o + uniform) * o
        where = weights + c.to(tl.int64)[:, None] * n_queries + n[None, :]
        tl.store(where, o * mean[None, :] - pull, mask=(c < n_classes)[:, None] & (n < n_queries)[None, :])


def small_shape(supports: int, dim: int, half: bool, hip: bool | None = None) -> tuple[int, int, int] | None:
    """Return queries and supports per program, and warps, of the one-launch kernel; None where it would spill."""
    block, width = padded(supports), padded(dim)
    size = block * width
    hip = torch.version.hip is not None if hip is None else hip
    wide = 4 if hip else 8  # AMD's warps are twice as wide
    if half:
        if block > 64 or width > 256:
            return None
        return 32 if size <= 64 * 128 else 16, block, 4 if size < 64 * 128 and width < 256 else wide
    if size > 32 * 128 or width > 128:
        return None
    return 16, block, 4 if size <= 16 * 128 else wide


def _small(
    student: Problem, teacher: Problem, need_queries: bool, need_supports: bool, shape: tuple[int, int, int]
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    vectors = [x.contiguous() for x in (student.queries, student.supports, teacher.queries, teacher.supports)]
    _, _, labels, mask, num_classes, temperature, smoothing, _ = student
    (n, dim), k, teacher_dim = student.queries.shape, student.supports.shape[0], teacher.queries.shape[1]
    half, teacher_half = is_half(student), is_half(teacher)
    rows, block, warps = shape
    programs = triton.cdiv(n, rows)

    def empty(*shape: int) -> Tensor:
        return torch.empty(*shape, device=student.device)

    losses = empty(n)
    query_grad = empty(n, dim) if need_queries else None
    partials = empty(programs, k, dim) if need_supports else None
    factor = 1 / (temperature * n)
    small_nnd_kernel[(programs,)](
        *vectors, labels, labels if mask is None else mask.to(torch.uint8), losses,
        losses if query_grad is None else query_grad, losses if partials is None else partials,
        n, k, num_classes, LOG2_E / temperature, 1 - smoothing, smoothing / num_classes, factor,
        D=dim, DP=padded(dim), TD=teacher_dim, TDP=padded(teacher_dim),
        BN=rows, BK=block, HALF=half, TEACHER_HALF=teacher_half, MASKED=mask is not None, SMOOTH=smoothing > 0,
        NEED_Q=need_queries, NEED_S=need_supports, PRECISION=tile_shape(dim, half=False).precision, EPS=EPS,
        num_warps=warps,
    )  # fmt: skip
    support_grad = None
    if partials is not None:
        used = torch.full((1,), k, device=student.device)
        order = torch.arange(k, device=student.device)
        one = torch.ones((), device=student.device)
        support_grad = through_units(vectors[1], order, partials, used, one, factor)
    return losses.mean(), query_grad, support_grad


def nnd(
    student: Problem, teacher: Problem, need_queries: bool, need_supports: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return the loss and its gradients [N, D] and [K, D], fp32."""
    (n, dim), smoothing = student.queries.shape, student.smoothing
    widest = max(dim, teacher.queries.shape[1])
    one_launch = small_shape(student.supports.shape[0], widest, is_half(student, teacher))
    if one_launch is not None and not student.cold:
        return _small(student, teacher, need_queries, need_supports, one_launch)
    segments = Segments(student)
    student_mass = segments.log_mass()
    teacher_mass = Segments(teacher, like=segments).log_mass()
    losses, weights = torch.empty(n, device=student.device), torch.empty_like(student_mass)
    loss_kernel[(triton.cdiv(n, 32),)](
        teacher_mass, student_mass, losses, weights,
        n, student.num_classes, 1 - smoothing, smoothing / student.num_classes,
        SMOOTH=smoothing > 0, BN=32, BC=32,
    )  # fmt: skip
    one = torch.ones((), device=student.device)
    return losses.mean(), *segments.gradients(student_mass, weights, one, 1 / n, need_queries, need_supports)
