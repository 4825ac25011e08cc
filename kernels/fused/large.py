"""Many supports: sorted by class, cut into tiles by position, as full as they can be.

A program takes some queries and a range ("split") of positions. Classes come in order, so it holds one class's sum
at a time and writes it when the next class begins: class c's part of split s is row c + s of the parts, since two
neighboring splits share at most one class. A tile of one class, by far the most, needs no 0/1 product.
"""

# The arguments of Triton kernels have no Python types.
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl

from .tiles import (
    SMALLEST,
    finished,
    finite,
    inverse_length,
    inverse_of_supports,
    load_labels,
    load_rows,
    logits_of,
)


@triton.jit(do_not_specialize=["offset", "rows", "n_classes"])
def inverse_lengths_kernel(
    source, labels, mask, state, offset, rows, n_classes,
    D: tl.constexpr, DP: tl.constexpr, BR: tl.constexpr, MASKED: tl.constexpr, LABELED: tl.constexpr,
    EPS: tl.constexpr,
):  # fmt: skip
    """state[offset + row] = inverse lengths of queries, or of LABELED supports."""
    i = tl.program_id(0) * BR + tl.arange(0, BR)
    used = i < rows
    if LABELED:
        label, used = load_labels(labels, mask, i, i < rows, MASKED)
        x = load_rows(source, i, used, D, DP).to(tl.float32)
        inverse = inverse_of_supports(x, label, used, n_classes, EPS)
    else:
        inverse = inverse_length(load_rows(source, i, used, D, DP).to(tl.float32), EPS)
    tl.store(state + offset + i, inverse, mask=i < rows)


@triton.jit(do_not_specialize=["n_queries", "n_classes", "split_size"])
def class_parts_kernel(
    queries, supports, order, classes, first_of_class, state, masses, tops, n_queries, n_classes, split_size, scale,
    D: tl.constexpr, DP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, HALF: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """masses, tops [C + splits, N]: sums of exponentials per class and split, in units of 2^tops."""
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    valid = n < n_queries
    split = tl.program_id(1)
    used_supports = tl.load(first_of_class + n_classes).to(tl.int32)
    start = split * split_size
    stop = tl.minimum(start + split_size, used_supports)
    q = load_rows(queries, n, valid, D, DP)
    q_inverse = tl.load(state + n_queries * 2 + n, mask=valid, other=0.0)
    factor = q_inverse * scale
    if not HALF:
        q = q.to(tl.float32) * q_inverse[:, None]
        factor = tl.where(q_inverse == q_inverse, scale, q_inverse)
    current = tl.load(classes + start, mask=start < stop, other=0).to(tl.int32)
    mass = tl.zeros((BN,), tl.float32)
    top = tl.full((BN,), -float("inf"), tl.float32)
    for k0 in range(start, stop, BK):
        position = k0 + tl.arange(0, BK)
        inside = position < stop
        k = tl.load(order + position, mask=inside, other=0)
        label = tl.load(classes + position, mask=inside, other=-1).to(tl.int32)
        s = load_rows(supports, k, inside, D, DP)
        if not HALF:
            s = s.to(tl.float32)
        s_inverse = tl.load(state + n_queries * 3 + k, mask=inside, other=0.0)
        logits = logits_of(q, factor, s, s_inverse, inside, PRECISION)
        lowest = tl.load(classes + k0).to(tl.int32)
        highest = tl.max(label, axis=0)
        for c in range(lowest, highest + 1):
            if c != current:
                where = (current + split).to(tl.int64) * n_queries + n
                tl.store(masses + where, mass, mask=valid)
                tl.store(tops + where, top, mask=valid)
                mass = tl.zeros((BN,), tl.float32)
                top = tl.full((BN,), -float("inf"), tl.float32)
                current = c
            ours = tl.where((label == c)[None, :], logits, -float("inf"))
            new = tl.maximum(top, tl.max(ours, axis=1))
            base = finite(new)
            mass = mass * tl.exp2(top - base) + tl.sum(tl.exp2(ours - base[:, None]), axis=1)
            top = new
    if start < stop:
        where = (current + split).to(tl.int64) * n_queries + n
        tl.store(masses + where, mass, mask=valid)
        tl.store(tops + where, top, mask=valid)


@triton.jit
def class_mass(
    masses, tops, first_of_class, n, c, valid, n_queries, n_classes, split_size, BN: tl.constexpr, BC: tl.constexpr
):  # fmt: skip
    """Mass and top [BC, BN] of classes: their parts, added in the order of the splits."""
    first = tl.load(first_of_class + c, mask=c < n_classes, other=0).to(tl.int32)
    last = tl.load(first_of_class + c + 1, mask=c < n_classes, other=0).to(tl.int32)
    first_split = first // split_size
    parts = tl.where(last > first, (last - 1) // split_size - first_split + 1, 0)
    mass = tl.zeros((BC, BN), tl.float32)
    top = tl.full((BC, BN), -float("inf"), tl.float32)
    for part in range(0, tl.max(parts, axis=0)):
        slot = (c + first_split + part).to(tl.int64)
        there = (part < parts)[:, None] & valid[None, :]
        where = slot[:, None] * n_queries + n[None, :]
        more = tl.load(masses + where, mask=there, other=0.0)
        its_top = tl.load(tops + where, mask=there, other=-float("inf"))
        new = tl.maximum(top, its_top)
        base = finite(new)
        mass = mass * tl.exp2(top - base) + more * tl.exp2(its_top - base)
        top = new
    return mass, top


@triton.jit(do_not_specialize=["n_queries", "n_classes", "split_size"])
def combine_kernel(
    masses, tops, first_of_class, state, out, n_queries, n_classes, split_size, keep, uniform,
    BN: tl.constexpr, BC: tl.constexpr, KIND: tl.constexpr, SMOOTH: tl.constexpr,
):  # fmt: skip
    """out [N, C] = probabilities in the form KIND; total and top of each query in the state."""
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    valid = n < n_queries
    total = tl.zeros((BN,), tl.float32)
    top = tl.full((BN,), -float("inf"), tl.float32)
    for c0 in range(0, n_classes, BC):
        c = c0 + tl.arange(0, BC)
        mass, its_top = class_mass(
            masses, tops, first_of_class, n, c, valid, n_queries, n_classes, split_size, BN, BC
        )  # fmt: skip
        new = tl.maximum(top, tl.max(its_top, axis=0))
        base = finite(new)
        total = total * tl.exp2(top - base) + tl.sum(mass * tl.exp2(its_top - base[None, :]), axis=0)
        top = new
    top = finite(top)
    tl.store(state + n, total, mask=valid)
    tl.store(state + n_queries + n, top, mask=valid)
    for c0 in range(0, n_classes, BC):
        c = c0 + tl.arange(0, BC)
        mass, its_top = class_mass(
            masses, tops, first_of_class, n, c, valid, n_queries, n_classes, split_size, BN, BC
        )  # fmt: skip
        value = mass * tl.exp2(its_top - top[None, :]) / total[None, :]
        logs = finite(its_top) - top[None, :] + tl.log2(tl.where(mass == 0.0, 1.0, mass) / total[None, :])
        value = tl.where((value < SMALLEST) & (mass != 0.0), logs, value)
        where = out + n.to(tl.int64)[None, :] * n_classes + c[:, None]
        inside = (c < n_classes)[:, None] & valid[None, :]
        tl.store(where, finished(value, keep, uniform, KIND, SMOOTH), mask=inside)
