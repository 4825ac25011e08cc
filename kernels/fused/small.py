"""Few supports (up to 640): one launch from vectors to probabilities, or to the losses that are made of them.

A program takes some queries against all supports, in the order in which they come. A first loop over the supports
finds each query's total, a second one the probabilities of 64 classes at a time, as a product of the supports'
weights with the 0/1 tile "has this label": no sort, any number of classes.

A class whose probability is too small for fp32 is found by summing again in a window 100 powers of two below, until
no logit can be smaller (`n_levels` windows; one at temperatures from 1/40).
"""

# The arguments of Triton kernels have no Python types.
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl

from .rows import distill_rows, objective_rows, sharpness_rows
from .tiles import (
    LEVEL,
    SMALLEST,
    finished,
    finite,
    inverse_of_supports,
    load_labels,
    load_queries,
    load_rows,
    logits_of,
    store_classes,
)


@triton.jit
def load_supports(
    supports, labels, mask, k, n_supports, n_classes,
    D: tl.constexpr, DP: tl.constexpr, HALF: tl.constexpr, MASKED: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """Supports as they are multiplied, their inverse lengths and labels, and which are used."""
    label, used = load_labels(labels, mask, k, k < n_supports, MASKED)
    s = load_rows(supports, k, used, D, DP)
    inverse = inverse_of_supports(s.to(tl.float32), label, used, n_classes, EPS)
    if not HALF:
        s = s.to(tl.float32)
    return s, inverse, label, used


@triton.jit
def probabilities(
    queries, supports, labels, mask, state, out, n, valid, n_queries, n_supports, n_classes, n_levels,
    scale, keep, uniform,
    D: tl.constexpr, DP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BC: tl.constexpr,
    HALF: tl.constexpr, MASKED: tl.constexpr, SMOOTH: tl.constexpr, KIND: tl.constexpr, STATE: tl.constexpr,
    PRECISION: tl.constexpr, SUM_PRECISION: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """out[n, c] = the probability, in the form KIND. state (if STATE): see problem.Forward."""
    q, factor, q_inverse = load_queries(queries, n, valid, D, DP, HALF, EPS)
    factor = factor * scale
    top = tl.full((BN,), -float("inf"), tl.float32)
    total = tl.zeros((BN,), tl.float32)
    for k0 in range(0, n_supports, BK):
        k = k0 + tl.arange(0, BK)
        s, inverse, label, used = load_supports(
            supports, labels, mask, k, n_supports, n_classes, D, DP, HALF, MASKED, EPS
        )  # fmt: skip
        logits = logits_of(q, factor, s, inverse, used, PRECISION)
        new = tl.maximum(top, tl.max(logits, axis=1))
        base = finite(new)
        total = total * tl.exp2(top - base) + tl.sum(tl.exp2(logits - base[:, None]), axis=1)
        top = new
        if STATE and tl.program_id(0) == 0:
            tl.store(state + n_queries * 3 + k, inverse, mask=k < n_supports)
    if STATE:
        tl.store(state + n, total, mask=valid)
        tl.store(state + n_queries + n, finite(top), mask=valid)
        tl.store(state + n_queries * 2 + n, q_inverse, mask=valid)
    # Not top + log2(total) in one number: at cold temperatures that would be rounded to 1e-5.
    top = finite(top)
    for c0 in range(0, n_classes, BC):
        c = c0 + tl.arange(0, BC)
        found = tl.zeros((BN, BC), tl.float32)
        for level in range(0, n_levels):
            mass = tl.zeros((BN, BC), tl.float32)
            base = top - level * LEVEL
            for k0 in range(0, n_supports, BK):
                k = k0 + tl.arange(0, BK)
                s, inverse, label, used = load_supports(
                    supports, labels, mask, k, n_supports, n_classes, D, DP, HALF, MASKED, EPS
                )  # fmt: skip
                weights = logits_of(q, factor, s, inverse, used, PRECISION) - base[:, None]
                # What is larger belongs to a class that was found in a higher window.
                weights = tl.where(weights > 1.0, 0.0, tl.exp2(weights))
                same = (label[:, None] == c[None, :]).to(tl.float32)
                mass = tl.dot(weights, same, mass, input_precision=SUM_PRECISION)
            mass = mass / total[:, None]
            smallest = tl.where(level + 1 == n_levels, 0.0, SMALLEST)
            wanted = (found == 0.0) & ((mass > smallest) | (mass != mass))
            found = tl.where(wanted, tl.where(level == 0, mass, tl.log2(mass) - level * LEVEL), found)
        store_classes(out, n, c, valid, n_classes, finished(found, keep, uniform, KIND, SMOOTH))


@triton.jit(do_not_specialize=["n_queries", "n_supports", "n_classes", "n_levels"])
def small_snn_kernel(
    queries, supports, labels, mask, state, out, n_queries, n_supports, n_classes, n_levels, scale, keep, uniform,
    D: tl.constexpr, DP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BC: tl.constexpr,
    HALF: tl.constexpr, MASKED: tl.constexpr, SMOOTH: tl.constexpr, KIND: tl.constexpr,
    PRECISION: tl.constexpr, SUM_PRECISION: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """Probabilities, or their logarithms."""
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    probabilities(
        queries, supports, labels, mask, state, out, n, n < n_queries, n_queries, n_supports, n_classes, n_levels,
        scale, keep, uniform, D, DP, BN, BK, BC, HALF, MASKED, SMOOTH, KIND, True, PRECISION, SUM_PRECISION, EPS,
    )  # fmt: skip


@triton.jit(do_not_specialize=["n_queries", "n_supports", "n_classes", "n_levels"])
def small_nnd_kernel(
    queries, supports, teacher_queries, teacher_supports, labels, mask, state, student, teacher, losses,
    n_queries, n_supports, n_classes, n_levels, scale, keep, uniform,
    D: tl.constexpr, DP: tl.constexpr, TD: tl.constexpr, TDP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    BC: tl.constexpr, HALF: tl.constexpr, TEACHER_HALF: tl.constexpr, MASKED: tl.constexpr, SMOOTH: tl.constexpr,
    PRECISION: tl.constexpr, TEACHER_PRECISION: tl.constexpr, SUM_PRECISION: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """Mixed probabilities of student and teacher, and the loss of each query."""
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    valid = n < n_queries
    probabilities(
        queries, supports, labels, mask, state, student, n, valid, n_queries, n_supports, n_classes, n_levels,
        scale, keep, uniform, D, DP, BN, BK, BC, HALF, MASKED, SMOOTH, "mixed", True, PRECISION, SUM_PRECISION, EPS,
    )  # fmt: skip
    probabilities(
        teacher_queries, teacher_supports, labels, mask, state, teacher, n, valid, n_queries, n_supports, n_classes,
        n_levels, scale, keep, uniform, TD, TDP, BN, BK, BC, TEACHER_HALF, MASKED, SMOOTH, "mixed", False,
        TEACHER_PRECISION, SUM_PRECISION, EPS,
    )  # fmt: skip
    tl.debug_barrier()  # the rows were written by other threads of this program
    distill_rows(student, teacher, losses, n, valid, n_classes, keep, uniform, SMOOTH, BN, BC)


@triton.jit(do_not_specialize=["n_images", "n_views", "n_supports", "n_classes", "n_levels"])
def small_objective_kernel(
    queries, supports, labels, mask, state, mixed, sharpness, predictions, pulls, means, cross_entropies,
    n_images, n_views, n_supports, n_classes, n_levels, scale, keep, uniform, power,
    D: tl.constexpr, DP: tl.constexpr, BI: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BC: tl.constexpr,
    HALF: tl.constexpr, MASKED: tl.constexpr, SMOOTH: tl.constexpr, NEED: tl.constexpr,
    PRECISION: tl.constexpr, SUM_PRECISION: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """BI images in all their views (BN rows, at least as many): probabilities, predictions, parts of the objective."""
    program = tl.program_id(0)
    row = tl.arange(0, BN)
    image = program * BI + row % BI
    view = row // BI
    n = view * n_images + image
    valid = (image < n_images) & (view < n_views)
    n_queries = n_images * n_views
    probabilities(
        queries, supports, labels, mask, state, mixed, n, valid, n_queries, n_supports, n_classes, n_levels,
        scale, keep, uniform, D, DP, BN, BK, BC, HALF, MASKED, SMOOTH, "mixed", True, PRECISION, SUM_PRECISION, EPS,
    )  # fmt: skip
    tl.debug_barrier()  # the rows were written by other threads of this program
    sharpness_rows(mixed, sharpness, predictions, n, valid, n_classes, keep, uniform, power, SMOOTH, BN, BC)
    tl.debug_barrier()
    image = program * BI + tl.arange(0, BI)
    objective_rows(
        mixed, sharpness, pulls, means, cross_entropies, image, image < n_images, n_images, n_views, n_classes,
        keep, uniform, power, program, SMOOTH, NEED, BI, BC,
    )  # fmt: skip
