"""The cross-entropy of a linear head on a GPU: value and gradient of a layer that a step ends with, in five operations.

Plain torch starts eleven, and two more where the rows are some of those that a network has seen. Here they are
a product and one launch forward, one launch and two products backward.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from . import choice
from .operators import transformed
from .ops import without_autocast

MOST = 1 << 18  # logits: one program adds up the loss


def takes(features: Tensor, labels: Tensor, classes: int) -> bool:
    """Return whether :func:`cross_entropy` is made for such rows; on a CPU plain torch is as quick."""
    if features.device.type == "cpu" or torch.compiler.is_compiling() or transformed():
        return False
    if choice.requested("auto") not in ("auto", "triton") or features.dtype == torch.float64:
        return False
    return 0 < len(labels) * classes <= MOST and choice.device_refuses(features.device) is None


def cross_entropy(features: Tensor, layer: nn.Linear, labels: Tensor, left_out: Tensor, scale: float = 1.0) -> Tensor:
    """Return the mean cross-entropy of the last K rows of features [n, F] under a linear layer with bias, labels [K].

    left_out: bool [C], classes that count for nothing. scale: of the gradient that reaches the features; the layer's
    own is complete. Computed in the features' type, the loss in fp32. A label that is no class makes it NaN.
    """
    return _CrossEntropy.apply(features, layer.weight, layer.bias, labels, left_out, scale)  # type: ignore[no-any-return]


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, features: Tensor, weight: Tensor, bias: Tensor, labels: Tensor, left_out: Tensor, scale: float
    ) -> Tensor:
        from .fused import linear

        ctx.scale, ctx.rows = scale, len(features)
        rows, used = features[len(features) - len(labels) :], weight.to(features.dtype)
        logits = without_autocast(torch.addmm)(bias.to(features.dtype), rows, used.t())
        loss, totals = linear.loss_forward(logits, labels.contiguous(), left_out)
        ctx.save_for_backward(rows, used, logits, totals, labels, left_out)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, up: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        from .fused import linear

        rows, weight, *saved = ctx.saved_tensors
        by_logits, by_bias = linear.loss_backward(ctx.rows, up, *saved)
        by_weight = by_logits[ctx.rows - len(rows) :].t() @ rows
        by_features = None
        if ctx.needs_input_grad[0]:  # rows before the last K have a gradient too: 0
            by_features = torch.addmm(weight[0], by_logits, weight, beta=0, alpha=ctx.scale)
        return by_features, by_weight.to(by_bias.dtype), by_bias, None, None, None
