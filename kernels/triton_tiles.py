"""Triton kernels of the class-segmented path.

Supports are sorted by class and cut into tiles of at most BK supports of ONE class. Everything that depends on
the class is then a vector over queries per tile: no one-hot matrix, any number of classes. A tile's sum of
exponentials, its part of a query's gradient and its own gradient are each written by exactly one program, so
there are no atomics and two runs agree bit by bit.

Vectors are unit length and already in the type of the matrix products (fp16, or fp32 as three tf32 products).
`log_mass` [C, N] is log2 of a class's sum of exponentials; a support's share of its class is then
exp2(logit - log_mass), at most 1 at every temperature.
"""

# The arguments of Triton kernels have no Python types.
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl


@triton.jit
def load_rows(pointer, rows, valid, D: tl.constexpr, DP: tl.constexpr):
    """[rows, DP] of a row-major [*, D] matrix; zeros where not valid and beyond D."""
    columns = tl.arange(0, DP)
    where = pointer + rows.to(tl.int64)[:, None] * D + columns[None, :]
    return tl.load(where, mask=valid[:, None] & (columns < D)[None, :], other=0.0)


@triton.jit
def inverse_length(x, EPS: tl.constexpr):
    """[rows, D] fp32 -> [rows]; the maximum is written so that NaN survives."""
    length = tl.sqrt(tl.sum(x * x, axis=1))
    return 1.0 / tl.where(length < EPS, EPS, length)


@triton.jit
def units_kernel(source, order, out, rows, D: tl.constexpr, DP: tl.constexpr, BR: tl.constexpr, EPS: tl.constexpr):
    """out[i] = source[order[i]] at unit length."""
    i = tl.program_id(0) * BR + tl.arange(0, BR)
    valid = i < rows
    x = load_rows(source, tl.load(order + i, mask=valid, other=0), valid, D, DP).to(tl.float32)
    unit = x * inverse_length(x, EPS)[:, None]
    columns = tl.arange(0, DP)
    where = out + i.to(tl.int64)[:, None] * D + columns[None, :]
    tl.store(where, unit.to(out.dtype.element_ty), mask=valid[:, None] & (columns < D)[None, :])


@triton.jit
def tile_sums_kernel(
    queries, supports, tiles, out, n_queries, n_tiles, scale,
    D: tl.constexpr, DP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
    RUNNING: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """out[tile, query] = log2 of the tile's sum of exponentials."""
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    q = load_rows(queries, n, n < n_queries, D, DP)
    first = tl.program_id(1) * GROUP
    for i in range(0, GROUP):
        tile = first + i
        start = tl.load(tiles + tile * 3 + 1, mask=tile < n_tiles, other=0)
        stop = tl.load(tiles + tile * 3 + 2, mask=tile < n_tiles, other=0)
        k = start + tl.arange(0, BK)
        s = load_rows(supports, k, k < stop, D, DP)
        logits = tl.dot(q, tl.trans(s), input_precision=PRECISION) * scale
        logits = tl.where((k < stop)[None, :], logits, -float("inf"))
        if RUNNING:
            top = tl.max(logits, axis=1)
            top = tl.where(top == -float("inf"), 0.0, top)
            total = top + tl.log2(tl.sum(tl.exp2(logits - top[:, None]), axis=1))
        else:
            total = tl.log2(tl.sum(tl.exp2(logits), axis=1))
        tl.store(out + tile.to(tl.int64) * n_queries + n, total, mask=(n < n_queries) & (tile < n_tiles))


@triton.jit
def class_sums_kernel(sums, tile_ptr, out, n_queries, n_classes, BN: tl.constexpr, BC: tl.constexpr):
    """out[class, query] = log2 of the sum over the class's tiles, in their order; -inf without tiles."""
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    first = tl.load(tile_ptr + c, mask=c < n_classes, other=0)
    last = tl.load(tile_ptr + c + 1, mask=c < n_classes, other=0)
    top = tl.full((BC, BN), -float("inf"), tl.float32)
    total = tl.zeros((BC, BN), tl.float32)
    for j in range(0, tl.max(last - first, axis=0)):
        tile = first + j
        valid = (tile < last)[:, None] & (n < n_queries)[None, :]
        where = sums + tile.to(tl.int64)[:, None] * n_queries + n[None, :]
        value = tl.load(where, mask=valid, other=-float("inf"))
        new = tl.maximum(top, value)
        base = tl.where(new == -float("inf"), 0.0, new)
        total = total * tl.exp2(top - base) + tl.exp2(value - base)
        top = new
    where = out + c.to(tl.int64)[:, None] * n_queries + n[None, :]
    result = tl.where(top == -float("inf"), 0.0, top) + tl.log2(total)
    tl.store(where, result, mask=(c < n_classes)[:, None] & (n < n_queries)[None, :])


@triton.jit
def load_by_class(pointer, c, n, n_classes, n_queries, other: tl.constexpr):
    """A [BC, BN] block of a [C, N] matrix."""
    where = pointer + c.to(tl.int64)[:, None] * n_queries + n[None, :]
    return tl.load(where, mask=(c < n_classes)[:, None] & (n < n_queries)[None, :], other=other)


@triton.jit
def log_total(log_mass, n, n_classes, n_queries, BN: tl.constexpr, BC: tl.constexpr):
    """log2 of the sum over all classes: [BN]."""
    top = tl.full((BN,), -float("inf"), tl.float32)
    total = tl.zeros((BN,), tl.float32)
    for c0 in range(0, n_classes, BC):
        value = load_by_class(log_mass, c0 + tl.arange(0, BC), n, n_classes, n_queries, -float("inf"))
        new = tl.maximum(top, tl.max(value, axis=0))
        base = tl.where(new == -float("inf"), 0.0, new)
        total = total * tl.exp2(top - base) + tl.sum(tl.exp2(value - base[None, :]), axis=0)
        top = new
    return tl.where(top == -float("inf"), 0.0, top) + tl.log2(total)


@triton.jit
def query_grad_kernel(
    queries, supports, tiles, log_mass, weights, out, n_queries, n_tiles, scale,
    D: tl.constexpr, DP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """out[group, query] = sum over the group's supports of (share of class * weight of class) * support."""
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    valid = n < n_queries
    q = load_rows(queries, n, valid, D, DP)
    grad = tl.zeros((BN, DP), tl.float32)
    first = tl.program_id(1) * GROUP
    for i in range(0, GROUP):
        tile = first + i
        klass = tl.load(tiles + tile * 3, mask=tile < n_tiles, other=0).to(tl.int64)
        start = tl.load(tiles + tile * 3 + 1, mask=tile < n_tiles, other=0)
        stop = tl.load(tiles + tile * 3 + 2, mask=tile < n_tiles, other=0)
        k = start + tl.arange(0, BK)
        s = load_rows(supports, k, k < stop, D, DP)
        mass = tl.load(log_mass + klass * n_queries + n, mask=valid & (start < stop), other=0.0)
        weight = tl.load(weights + klass * n_queries + n, mask=valid & (start < stop), other=0.0)
        logits = tl.dot(q, tl.trans(s), input_precision=PRECISION) * scale
        share = tl.where((k < stop)[None, :], tl.exp2(logits - mass[:, None]), 0.0) * weight[:, None]
        grad = tl.dot(share.to(s.dtype), s, grad, input_precision=PRECISION)
    columns = tl.arange(0, DP)
    rows = tl.program_id(1).to(tl.int64) * n_queries + n
    tl.store(out + rows[:, None] * D + columns[None, :], grad, mask=valid[:, None] & (columns < D)[None, :])


@triton.jit
def support_grad_kernel(
    queries, supports, tiles, log_mass, weights, out, n_queries, scale,
    D: tl.constexpr, DP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """out[support] = sum over queries of (share of class * weight of class) * query, for one tile of supports."""
    tile = tl.program_id(0)
    klass = tl.load(tiles + tile * 3).to(tl.int64)
    start = tl.load(tiles + tile * 3 + 1)
    stop = tl.load(tiles + tile * 3 + 2)
    if start < stop:
        k = start + tl.arange(0, BK)
        s = load_rows(supports, k, k < stop, D, DP)
        grad = tl.zeros((BK, DP), tl.float32)
        for n0 in range(0, n_queries, BN):
            n = n0 + tl.arange(0, BN)
            valid = n < n_queries
            q = load_rows(queries, n, valid, D, DP)
            mass = tl.load(log_mass + klass * n_queries + n, mask=valid, other=0.0)
            weight = tl.load(weights + klass * n_queries + n, mask=valid, other=0.0)
            logits = tl.dot(s, tl.trans(q), input_precision=PRECISION) * scale
            share = tl.where(valid[None, :], tl.exp2(logits - mass[None, :]), 0.0) * weight[None, :]
            grad = tl.dot(share.to(q.dtype), q, grad, input_precision=PRECISION)
        columns = tl.arange(0, DP)
        where = out + k.to(tl.int64)[:, None] * D + columns[None, :]
        tl.store(where, grad, mask=(k < stop)[:, None] & (columns < D)[None, :])


@triton.jit
def through_units_kernel(
    source, order, partials, out, used, peak, rows, n_partials, factor,
    D: tl.constexpr, DP: tl.constexpr, BR: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """out[order[i]] = gradient of source[order[i]], given partial gradients [n_partials, rows, D] of its unit vector.

    Rows from `used` on (a pointer) took no part: zero. factor and peak (a pointer) multiply the result.
    """
    i = tl.program_id(0) * BR + tl.arange(0, BR)
    valid = i < rows
    took_part = valid & (i < tl.load(used))
    row = tl.load(order + i, mask=valid, other=0)
    x = load_rows(source, row, valid, D, DP).to(tl.float32)
    scale = inverse_length(x, EPS)
    unit = x * scale[:, None]
    grad = tl.zeros((BR, DP), tl.float32)
    for p in range(0, n_partials):
        grad += load_rows(partials, p * rows + i, took_part, D, DP)
    along = tl.sum(unit * grad, axis=1)
    along = tl.where(scale < 1.0 / EPS, along, 0.0)  # a vector shorter than EPS is only divided by a constant
    grad = (grad - unit * along[:, None]) * (scale * factor * tl.load(peak))[:, None]
    grad = tl.where(took_part[:, None], grad, 0.0)
    columns = tl.arange(0, DP)
    where = out + row.to(tl.int64)[:, None] * D + columns[None, :]
    tl.store(where, grad.to(out.dtype.element_ty), mask=valid[:, None] & (columns < D)[None, :])
