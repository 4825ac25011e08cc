"""The cross-entropy of logits [K, C], some classes left out: one launch for the value, one for the gradient."""

# The arguments of Triton kernels have no Python types.
# mypy: disable-error-code="no-untyped-def"

import torch
import triton
import triton.language as tl
from torch import Tensor

from .tiles import LN_2, LOG2_E, finite

ROWS, CLASSES = 64, 64  # at a time, of the one program that has the value
GRADIENT_CLASSES = 16  # of each program that has a part of the gradient


@triton.jit
def load_logits(logits, left_out, row, c, inside, n_classes):
    """A block of logits in fp32; -inf for classes that are left out, and outside."""
    counts = (c < n_classes) & (tl.load(left_out + c, mask=c < n_classes, other=1) == 0)
    where = logits + row.to(tl.int64)[:, None] * n_classes + c[None, :]
    return tl.load(where, mask=inside[:, None] & counts[None, :], other=-float("inf")).to(tl.float32)


@triton.jit(do_not_specialize=["n_rows", "n_classes"])
def cross_entropy_kernel(
    logits, labels, left_out, totals, loss, n_rows, n_classes, BR: tl.constexpr, BC: tl.constexpr
):  # fmt: skip
    """One program: the mean loss, and the logarithm of each row's sum of exponentials."""
    losses = tl.zeros((BR,), tl.float32)
    for first in range(0, n_rows, BR):
        row = first + tl.arange(0, BR)
        inside = row < n_rows
        label = tl.load(labels + row, mask=inside, other=0)
        top = tl.full((BR,), -float("inf"), tl.float32)
        total = tl.zeros((BR,), tl.float32)
        own = tl.zeros((BR,), tl.float32)
        for c0 in range(0, n_classes, BC):
            c = c0 + tl.arange(0, BC)
            x = load_logits(logits, left_out, row, c, inside, n_classes)
            new = tl.maximum(top, tl.max(x, axis=1))
            base = finite(new)
            total = total * tl.exp2((top - base) * LOG2_E) + tl.sum(tl.exp2((x - base[:, None]) * LOG2_E), axis=1)
            own += tl.sum(tl.where(c[None, :] == label[:, None], x, 0.0), axis=1)
            top = new
        own = tl.where((label >= 0) & (label < n_classes), own, float("nan"))
        # Not one number top + log(total) less the own logit: differences of large logits would lose what is left.
        losses += tl.where(inside, (finite(top) - own) + tl.log2(total) * LN_2, 0.0)
        tl.store(totals + row, finite(top) + tl.log2(total) * LN_2, mask=inside)
    tl.store(loss, tl.sum(losses, axis=0) / n_rows)


@triton.jit(do_not_specialize=["before", "n_rows", "n_classes"])
def cross_entropy_gradient_kernel(
    logits, labels, left_out, totals, up, by_logits, by_bias, before, n_rows, n_classes,
    BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Some classes: gradients [before + K, C] of logits, 0 in the rows before, and their sum over rows."""
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    factor = tl.load(up).to(tl.float32) / n_rows
    column = tl.zeros((BC,), tl.float32)
    for first in range(0, before + n_rows, BR):
        place = first + tl.arange(0, BR)
        row = place - before
        inside = (row >= 0) & (row < n_rows)
        x = load_logits(logits, left_out, row, c, inside, n_classes)
        label = tl.load(labels + row, mask=inside, other=-1)
        total = tl.load(totals + row, mask=inside, other=0.0)
        grad = tl.exp2((x - total[:, None]) * LOG2_E) - tl.where(c[None, :] == label[:, None], 1.0, 0.0)
        grad = tl.where(inside[:, None], grad * factor, 0.0)
        where = by_logits + place.to(tl.int64)[:, None] * n_classes + c[None, :]
        tl.store(where, grad.to(by_logits.dtype.element_ty), mask=(row < n_rows)[:, None] & (c < n_classes)[None, :])
        column += tl.sum(grad, axis=0)
    tl.store(by_bias + c, column, mask=c < n_classes)


def loss_forward(logits: Tensor, labels: Tensor, left_out: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean cross-entropy and the logarithm of each row's sum of exponentials, [K]; both fp32."""
    loss, totals = (torch.empty(size, device=logits.device) for size in ((), (len(logits),)))
    cross_entropy_kernel[(1,)](
        logits, labels, left_out.view(torch.uint8), totals, loss, *logits.shape, BR=ROWS, BC=CLASSES, num_warps=8
    )
    return loss, totals


def loss_backward(
    rows: int, up: Tensor, logits: Tensor, totals: Tensor, labels: Tensor, left_out: Tensor
) -> tuple[Tensor, Tensor]:
    """Return gradients of logits [rows, C], whose last K rows are those that there were, and of the bias [C] fp32."""
    count, classes = logits.shape
    by_logits, by_bias = logits.new_empty(rows, classes), torch.empty(classes, device=logits.device)
    cross_entropy_gradient_kernel[(triton.cdiv(classes, GRADIENT_CLASSES),)](
        logits, labels, left_out.view(torch.uint8), totals, up, by_logits, by_bias, rows - count, count, classes,
        BR=ROWS, BC=GRADIENT_CLASSES,
    )  # fmt: skip
    return by_logits, by_bias
