"""The backward of everything: one kernel for both gradients, and one that adds up parts.

A program takes some queries and a range of supports, recomputes their weights, and has from one exponential the
gradient of every logit. Its part of the queries' gradient is one sum; its part of a support's gradient is written
for itself and added to the other programs' by `finish_kernel`, in a fixed order: no atomics, two runs agree.

Half-precision products take the gradient of the logits as two terms, the second one what the first one lost in
rounding, scaled by the largest of each row (for queries) or column (for supports): as good as fp32, at any size of
upstream gradients.
"""

# The arguments of Triton kernels have no Python types.
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl

from .tiles import LOG2_E, load_classes, load_labels, load_rows, log2_of, logits_of, store_rows, value_of


@triton.jit
def dot_of_halves(weights, x, SCALE: tl.constexpr):
    """weights [A, B] fp32 times x [B, D] fp16 or bf16, nearly as good as in fp32. Only fp16 has to be SCALEd."""
    size = tl.max(tl.abs(weights), axis=1)
    size = tl.where(size > 0.0, size, 1.0)
    if SCALE:
        weights = weights / size[:, None]
    high = weights.to(x.dtype)
    low = (weights - high.to(tl.float32)).to(x.dtype)
    result = tl.dot(low, x, tl.dot(high, x))
    if SCALE:
        result = result * size[:, None]
    return result


@triton.jit
def product(weights, x, HALF: tl.constexpr, PRECISION: tl.constexpr):
    return dot_of_halves(weights, x, x.dtype == tl.float16) if HALF else tl.dot(weights, x, input_precision=PRECISION)


@triton.jit
def without_short(inverse, EPS: tl.constexpr):
    """A zero vector adds nothing to a sum, but its inverse length would drown all others'."""
    return tl.where(inverse < 1.0 / EPS, inverse, tl.where(inverse == inverse, 0.0, inverse))


@triton.jit
def through_unit(grad, x, inverse, EPS: tl.constexpr):
    """The gradient of x [rows, D] fp32, given that of x at unit length."""
    unit = x * inverse[:, None]
    along = tl.sum(unit * grad, axis=1)
    along = tl.where(inverse < 1.0 / EPS, along, 0.0)  # a vector shorter than EPS is only divided by a constant
    return (grad - unit * along[:, None]) * inverse[:, None]


@triton.jit
def decoded(stored, keep, uniform, STORED: tl.constexpr, SMOOTH: tl.constexpr):
    """Of stored probabilities: o before smoothing, its base-2 logarithm, and w after."""
    if STORED == "mixed":
        o = value_of(stored)
        logs = log2_of(stored)
        w = keep * o + uniform
    else:
        w = stored
        if STORED == "log":
            w = tl.exp2(stored * LOG2_E)
        o = (w - uniform) / keep
        logs = stored * LOG2_E  # of w: for "log" without smoothing, where it is also o's
    return o, logs, w


@triton.jit
def upstream_of(grads, up, up_two, where, valid, per_row, size, keep, uniform, SOURCE: tl.constexpr):
    """The gradient that arrives at outputs: as "given", or that of their logarithms made of the "teacher"'s mixed
    probabilities, or of the two "terms" of the objective."""
    g = tl.load(grads + where, mask=valid, other=0.0)
    if SOURCE == "teacher":
        g = -(keep * value_of(g) + uniform) * per_row
    if SOURCE == "terms":
        g = g * tl.load(up) + tl.load(grads + size + where, mask=valid, other=0.0) * tl.load(up_two)
    return g


@triton.jit(
    do_not_specialize=[
        "n_queries", "n_classes", "first_query", "last_query", "first_support", "last_support", "split_size",
        "up_stride",
    ]
)  # fmt: skip
def gradient_kernel(
    queries, supports, labels, mask, order, first_of_class, state, stored, grads, up, up_two, dq, ds,
    n_queries, n_classes, first_query, last_query, first_support, last_support, split_size, up_stride,
    scale, factor, up_factor, keep, uniform,
    D: tl.constexpr, DP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BC: tl.constexpr,
    HALF: tl.constexpr, MASKED: tl.constexpr, SORTED: tl.constexpr, SMOOTH: tl.constexpr, STORED: tl.constexpr,
    SOURCE: tl.constexpr, FINISH: tl.constexpr, NEED_Q: tl.constexpr, NEED_S: tl.constexpr,
    PRECISION: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """dq: gradients of queries (FINISH), or parts [splits, N, D] to which is added; ds: parts [programs, chunk, D]."""
    LOG: tl.constexpr = STORED != "probability"
    SHARES: tl.constexpr = LOG and not SMOOTH
    n = first_query + tl.program_id(0) * BN + tl.arange(0, BN)
    valid = n < last_query
    per_row = tl.zeros((BN,), tl.float32)
    if SOURCE == "teacher":
        per_row = tl.load(up + n * up_stride, mask=valid, other=0.0) * up_factor
    total = tl.load(state + n, mask=valid, other=1.0)
    top = tl.load(state + n_queries + n, mask=valid, other=0.0)
    q_inverse = tl.load(state + n_queries * 2 + n, mask=valid, other=0.0)
    raw = load_rows(queries, n, valid, D, DP)
    q, row_factor = raw, q_inverse * scale
    if not HALF:
        q = raw.to(tl.float32) * q_inverse[:, None]
        row_factor = tl.where(q_inverse == q_inverse, scale, q_inverse)

    size = n_queries.to(tl.int64) * n_classes
    mean = tl.zeros((BN,), tl.float32)
    for c0 in range(0, n_classes, BC):
        c = c0 + tl.arange(0, BC)
        real = valid[:, None] & (c < n_classes)[None, :]
        where = n.to(tl.int64)[:, None] * n_classes + c[None, :]
        g = upstream_of(grads, up, up_two, where, real, per_row[:, None], size, keep, uniform, SOURCE)
        o, logs, w = decoded(load_classes(stored, n, c, valid, n_classes), keep, uniform, STORED, SMOOTH)
        if SHARES:
            terms = tl.where(logs == -float("inf"), 0.0, g)
        else:
            terms = g * o
            if LOG:
                terms = terms / w
        mean += tl.sum(tl.where(real, terms, 0.0), axis=1)

    start = first_support + tl.program_id(1) * split_size
    stop = tl.minimum(start + split_size, last_support)
    if SORTED:  # those that are not used come last
        stop = tl.minimum(stop, tl.load(first_of_class + n_classes).to(tl.int32))
    query_grad = tl.zeros((BN, DP), tl.float32)
    for k0 in range(start, stop, BK):
        position = k0 + tl.arange(0, BK)
        inside = position < stop
        k = position
        if SORTED:
            k = tl.load(order + position, mask=inside, other=0)
        label, used = load_labels(labels, mask, k, inside, MASKED)
        s = load_rows(supports, k, used, D, DP)
        if not HALF:
            s = s.to(tl.float32)
        s_inverse = tl.load(state + n_queries * 3 + k, mask=used, other=0.0)
        logits = logits_of(q, row_factor, s, s_inverse, used, PRECISION) - top[:, None]
        real = valid[:, None] & (used & (label >= 0) & (label < n_classes))[None, :]
        where = n.to(tl.int64)[:, None] * n_classes + label[None, :]
        g = upstream_of(grads, up, up_two, where, real, per_row[:, None], size, keep, uniform, SOURCE)
        if LOG:
            o, logs, w = decoded(tl.load(stored + where, mask=real, other=1.0), keep, uniform, STORED, SMOOTH)
        if SHARES:
            grad = tl.exp2(logits - logs) * (g - o * mean[:, None])
        else:
            if LOG:
                g = g / w
            grad = tl.exp2(logits) * keep * (g - mean[:, None])
        grad = tl.where(valid[:, None] & used[None, :], grad / total[:, None], 0.0)
        if NEED_Q:
            query_grad += product(grad * without_short(s_inverse, EPS)[None, :], s, HALF, PRECISION)
        if NEED_S:
            weights = grad
            if HALF:
                weights = grad * without_short(q_inverse, EPS)[:, None]
            part = product(tl.trans(weights), q, HALF, PRECISION)
            rows = tl.program_id(0) * (last_support - first_support) + (position - first_support)
            store_rows(ds, rows.to(tl.int64), inside, part, D, DP)
    if NEED_Q:
        if FINISH:
            query_grad = through_unit(query_grad, raw.to(tl.float32), q_inverse, EPS) * factor
            store_rows(dq, n, valid, query_grad, D, DP)
        else:
            rows = tl.program_id(1).to(tl.int64) * n_queries + n
            if first_support > 0:
                query_grad += load_rows(dq, rows, valid, D, DP)
            store_rows(dq, rows, valid, query_grad, D, DP)


@triton.jit(do_not_specialize=["offset", "first", "rows", "n_parts", "add"])
def finish_kernel(
    source, mask, order, state, parts, out, offset, first, rows, n_parts, add, factor,
    D: tl.constexpr, DP: tl.constexpr, BR: tl.constexpr, MASKED: tl.constexpr, SORTED: tl.constexpr,
    EPS: tl.constexpr,
):  # fmt: skip
    """out = (add: out +) the gradient of rows of source, from `first` on, given parts [n_parts, rows, D] of those of
    unit vectors. Rows that are not used get 0. Their inverse lengths are at `offset` in the state."""
    i = tl.program_id(0) * BR + tl.arange(0, BR)
    inside = i < rows
    row = first + i
    if SORTED:
        row = tl.load(order + row, mask=inside, other=0)
    used = inside
    if MASKED:
        used = used & (tl.load(mask + row, mask=inside, other=0) != 0)
    x = load_rows(source, row, used, D, DP).to(tl.float32)
    inverse = tl.load(state + offset + row, mask=used, other=0.0)
    grad = tl.zeros((BR, DP), tl.float32)
    for p in range(0, n_parts):
        grad += load_rows(parts, rows.to(tl.int64) * p + i, used, D, DP)
    grad = through_unit(grad, x, inverse, EPS) * factor
    grad = tl.where(used[:, None], grad, 0.0)
    if add > 0:
        grad += load_rows(out, row, inside, D, DP).to(tl.float32)
    store_rows(out, row, inside, grad, D, DP)
