"""What all Triton kernels are made of: rows, lengths, logits of a tile, and how probabilities are stored.

Half-precision vectors are multiplied as they are, which matrix units do exactly; lengths and temperature come after
the product. fp32 queries are brought to unit length first, so that no product overflows.

A probability is stored as it is, or as its base-2 logarithm, a negative number, where it is too small for fp32
("mixed"). 0 is a class without supports.
"""

# The arguments of Triton kernels have no Python types.
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl

LEVEL: tl.constexpr = tl.constexpr(100.0)  # powers of two in a window of sums; fp32 has 126 below 1
SMALLEST: tl.constexpr = tl.constexpr(2.0**-100)
LN_2: tl.constexpr = tl.constexpr(0.6931471805599453)
LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def load_rows(pointer, rows, valid, D: tl.constexpr, DP: tl.constexpr):
    """[rows, DP] of a row-major [*, D] matrix; zeros where not valid and beyond D."""
    columns = tl.arange(0, DP)
    where = pointer + rows.to(tl.int64)[:, None] * D + columns[None, :]
    return tl.load(where, mask=valid[:, None] & (columns < D)[None, :], other=0.0)


@triton.jit
def store_rows(pointer, rows, valid, values, D: tl.constexpr, DP: tl.constexpr):
    columns = tl.arange(0, DP)
    where = pointer + rows.to(tl.int64)[:, None] * D + columns[None, :]
    tl.store(where, values.to(pointer.dtype.element_ty), mask=valid[:, None] & (columns < D)[None, :])


@triton.jit
def inverse_length(x, EPS: tl.constexpr):
    """[rows, D] fp32 -> [rows]; the maximum is written so that NaN survives."""
    length = tl.sqrt(tl.sum(x * x, axis=1))
    return 1.0 / tl.where(length < EPS, EPS, length)


@triton.jit
def load_queries(queries, n, valid, D: tl.constexpr, DP: tl.constexpr, HALF: tl.constexpr, EPS: tl.constexpr):
    """Queries as they are multiplied, what a product with them is still to be multiplied by, and inverse lengths."""
    q = load_rows(queries, n, valid, D, DP)
    inverse = inverse_length(q.to(tl.float32), EPS)
    factor = inverse
    if not HALF:
        q = q.to(tl.float32) * inverse[:, None]
        factor = tl.where(inverse == inverse, 1.0, inverse)
    return q, factor, inverse


@triton.jit
def load_labels(labels, mask, k, inside, MASKED: tl.constexpr):
    """The labels of supports, and which of these are used."""
    used = inside
    if MASKED:
        used = used & (tl.load(mask + k, mask=inside, other=0) != 0)
    return tl.load(labels + k, mask=used, other=-1).to(tl.int32), used


@triton.jit
def inverse_of_supports(x, label, used, n_classes, EPS: tl.constexpr):
    """Inverse lengths of supports x [BK, DP] fp32. A label that is no class makes everything NaN."""
    wrong = used & ((label < 0) | (label >= n_classes))
    return tl.where(wrong, float("nan"), inverse_length(x, EPS))


@triton.jit
def logits_of(q, factor, s, inverse, used, PRECISION: tl.constexpr):
    """Base-2 logits [BN, BK]; factor [BN] has the temperature in it."""
    products = tl.dot(q, tl.trans(s), input_precision=PRECISION)
    return tl.where(used[None, :], products * factor[:, None] * inverse[None, :], -float("inf"))


@triton.jit
def finite(top):
    """What may be subtracted: nothing from a row without logits."""
    return tl.where(top == -float("inf"), 0.0, top)


@triton.jit
def load_classes(pointer, n, c, valid, n_classes):
    """A [BN, BC] block of an [N, C] matrix; zeros outside."""
    where = pointer + n.to(tl.int64)[:, None] * n_classes + c[None, :]
    return tl.load(where, mask=valid[:, None] & (c < n_classes)[None, :], other=0.0)


@triton.jit
def store_classes(pointer, n, c, valid, n_classes, values):
    where = pointer + n.to(tl.int64)[:, None] * n_classes + c[None, :]
    tl.store(where, values, mask=valid[:, None] & (c < n_classes)[None, :])


@triton.jit
def log2_of(mixed):
    """The base-2 logarithm of a stored probability; -inf for a class without supports."""
    return tl.where(mixed < 0.0, mixed, tl.log2(tl.where(mixed < 0.0, 1.0, mixed)))


@triton.jit
def value_of(mixed):
    """A stored probability."""
    return tl.where(mixed < 0.0, tl.exp2(mixed), mixed)


@triton.jit
def finished(mixed, keep, uniform, KIND: tl.constexpr, SMOOTH: tl.constexpr):
    """Stored probabilities as they are to be given back: "mixed", "probability" or "log"."""
    result = mixed
    if KIND == "probability":
        result = keep * value_of(mixed) + uniform
    if KIND == "log":
        result = (tl.log2(keep * value_of(mixed) + uniform) if SMOOTH else log2_of(mixed)) * LN_2
    return result
