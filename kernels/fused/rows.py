"""What follows from the probabilities [N, C] alone: the distillation loss and the objective of several views."""

# The arguments of Triton kernels have no Python types.
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl

from .tiles import LN_2, finite, load_classes, log2_of, store_classes, value_of


@triton.jit
def distill_rows(
    student, teacher, losses, n, valid, n_classes, keep, uniform,
    SMOOTH: tl.constexpr, BN: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """losses[n] = -sum_c w'_c log w_c, of mixed probabilities."""
    loss = tl.zeros((BN,), tl.float32)
    for c0 in range(0, n_classes, BC):
        c = c0 + tl.arange(0, BC)
        mine = load_classes(student, n, c, valid, n_classes)
        target = value_of(load_classes(teacher, n, c, valid, n_classes))
        if SMOOTH:
            terms = (keep * target + uniform) * tl.log2(keep * value_of(mine) + uniform)
            loss -= tl.sum(tl.where((c < n_classes)[None, :], terms, 0.0), axis=1)
        else:
            loss -= tl.sum(tl.where(target == 0.0, 0.0, target * log2_of(mine)), axis=1)
    tl.store(losses + n, loss * LN_2, mask=valid)


@triton.jit
def log2_smoothed(mixed, keep, uniform, SMOOTH: tl.constexpr):
    logs = log2_of(mixed)
    if SMOOTH:
        logs = tl.log2(keep * value_of(mixed) + uniform)
    return logs


@triton.jit
def sharpness_rows(
    mixed, sharpness, predictions, n, valid, n_classes, keep, uniform, power,
    SMOOTH: tl.constexpr, BN: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """sharpness[n] = log2 of sum_c w_c^power; predictions[n] = the first class of the largest w."""
    top = tl.full((BN,), -float("inf"), tl.float32)
    total = tl.zeros((BN,), tl.float32)
    best = tl.zeros((BN,), tl.int32)
    for c0 in range(0, n_classes, BC):
        c = c0 + tl.arange(0, BC)
        logs = log2_smoothed(load_classes(mixed, n, c, valid, n_classes), keep, uniform, SMOOTH)
        logs = tl.where((c < n_classes)[None, :], logs, -float("inf"))
        largest = tl.max(logs, axis=1)
        first = tl.min(tl.where(logs == largest[:, None], c[None, :], n_classes), axis=1)
        best = tl.where(largest > top, first, best)
        new = tl.maximum(top, largest)
        base = finite(new)
        total = total * tl.exp2(power * (top - base)) + tl.sum(tl.exp2(power * (logs - base[:, None])), axis=1)
        top = new
    tl.store(sharpness + n, power * finite(top) + tl.log2(total), mask=valid)
    tl.store(predictions + n, best.to(tl.int64), mask=valid)


@triton.jit
def objective_rows(
    mixed, sharpness, pulls, means, cross_entropies, image, valid, n_images, n_views, n_classes, keep, uniform, power,
    program, SMOOTH: tl.constexpr, NEED: tl.constexpr, BI: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Of some images in all views: the part of the cross-entropy, the sum of sharpened predictions [C], and the
    cross-entropy's gradient [views * images, C] in the logarithms."""
    rows = 1.0 / (n_images * n_views)
    second = image + n_images
    one_sharpness = tl.load(sharpness + image, mask=valid, other=0.0)
    two_sharpness = tl.load(sharpness + second, mask=valid, other=0.0)
    total = tl.zeros((BI,), tl.float32)
    for c0 in range(0, n_classes, BC):
        c = c0 + tl.arange(0, BC)
        real = valid[:, None] & (c < n_classes)[None, :]
        one = log2_smoothed(load_classes(mixed, image, c, valid, n_classes), keep, uniform, SMOOTH)
        two = log2_smoothed(load_classes(mixed, second, c, valid, n_classes), keep, uniform, SMOOTH)
        one = tl.exp2(power * one - one_sharpness[:, None])
        two = tl.exp2(power * two - two_sharpness[:, None])
        mean = tl.zeros((BC,), tl.float32)
        for view in range(0, n_views):
            n = image + view * n_images
            logs = log2_smoothed(load_classes(mixed, n, c, valid, n_classes), keep, uniform, SMOOTH)
            sharp = tl.exp2(power * logs - tl.load(sharpness + n, mask=valid, other=0.0)[:, None])
            mean += tl.sum(tl.where(real, sharp, 0.0), axis=0)
            target = tl.where(view == 0, two, tl.where(view == 1, one, (one + two) * 0.5))
            target = tl.where(target < 1e-4, 0.0, target)  # reference.SMALLEST_TARGET
            total -= tl.sum(tl.where(real & (target != 0.0), target * logs, 0.0), axis=1)
            if NEED:
                store_classes(pulls, n, c, valid, n_classes, -target * rows)
        tl.store(means + program.to(tl.int64) * n_classes + c, mean, mask=c < n_classes)
    tl.store(cross_entropies + program, tl.sum(total, axis=0) * (LN_2 * rows))


@triton.jit
def log_mean_of(means, c, n_classes, n_programs, rows, BC: tl.constexpr):
    """Mean sharpened prediction [BC] and its natural logarithm (0 where the mean is)."""
    mean = tl.zeros((BC,), tl.float32)
    for i in range(0, n_programs):
        mean += tl.load(means + i * n_classes + c, mask=c < n_classes, other=0.0)
    mean = mean * rows
    return mean, tl.log2(tl.where(mean == 0.0, 1.0, mean)) * LN_2


@triton.jit(do_not_specialize=["n_images", "n_views", "n_classes", "n_programs"])
def finish_objective_kernel(
    mixed, sharpness, pulls, means, cross_entropies, cross_entropy, minus_entropy,
    n_images, n_views, n_classes, n_programs, keep, uniform, power,
    SMOOTH: tl.constexpr, NEED: tl.constexpr, BN: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """The cross-entropy, minus the entropy of the mean, and pulls[1] = the latter's gradient in the logarithms."""
    n_rows = n_images * n_views
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    valid = n < n_rows
    rows = 1.0 / n_rows
    sharpnesses = tl.load(sharpness + n, mask=valid, other=0.0)
    expected = tl.zeros((BN,), tl.float32)
    entropy = 0.0
    for c0 in range(0, n_classes, BC):
        c = c0 + tl.arange(0, BC)
        mean, log_mean = log_mean_of(means, c, n_classes, n_programs, rows, BC)
        entropy += tl.sum(mean * log_mean, axis=0)
        if NEED:
            logs = log2_smoothed(load_classes(mixed, n, c, valid, n_classes), keep, uniform, SMOOTH)
            sharp = tl.exp2(power * logs - sharpnesses[:, None])
            expected += tl.sum(tl.where((c < n_classes)[None, :], sharp * log_mean[None, :], 0.0), axis=1)
    if NEED:
        for c0 in range(0, n_classes, BC):
            c = c0 + tl.arange(0, BC)
            mean, log_mean = log_mean_of(means, c, n_classes, n_programs, rows, BC)
            logs = log2_smoothed(load_classes(mixed, n, c, valid, n_classes), keep, uniform, SMOOTH)
            sharp = tl.exp2(power * logs - sharpnesses[:, None])
            pull = power * rows * sharp * (log_mean[None, :] - expected[:, None])
            store_classes(pulls + n_rows.to(tl.int64) * n_classes, n, c, valid, n_classes, pull)
    if tl.program_id(0) == 0:
        total = 0.0
        for i in range(0, n_programs):
            total += tl.load(cross_entropies + i)
        tl.store(cross_entropy, total)
        tl.store(minus_entropy, entropy)


@triton.jit(do_not_specialize=["n_queries", "n_classes"])
def distill_kernel(
    student, teacher, losses, n_queries, n_classes, keep, uniform,
    SMOOTH: tl.constexpr, BN: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    distill_rows(student, teacher, losses, n, n < n_queries, n_classes, keep, uniform, SMOOTH, BN, BC)


@triton.jit(do_not_specialize=["n_images", "n_views", "n_classes"])
def objective_kernel(
    mixed, sharpness, predictions, pulls, means, cross_entropies, n_images, n_views, n_classes, keep, uniform, power,
    SMOOTH: tl.constexpr, NEED: tl.constexpr, BI: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0) * BI + tl.arange(0, BI)
    valid = image < n_images
    for view in range(0, n_views):
        n = image + view * n_images
        sharpness_rows(mixed, sharpness, predictions, n, valid, n_classes, keep, uniform, power, SMOOTH, BI, BC)
    tl.debug_barrier()  # the rows were written by other threads of this program
    objective_rows(
        mixed, sharpness, pulls, means, cross_entropies, image, valid, n_images, n_views, n_classes,
        keep, uniform, power, tl.program_id(0), SMOOTH, NEED, BI, BC,
    )  # fmt: skip
