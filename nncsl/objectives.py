"""The losses, as pure functions of tensors. Probabilities come from ``kernels.snn``; all of this is fp32."""

import torch
from torch import Tensor
from torch.nn import functional as F

_FLOOR = 1e-4  # target probabilities below it count as zero
_TINY = 1e-12


def sharpen(probabilities: Tensor, temperature: float) -> Tensor:
    """p^(1/T), normalized again over the last dimension."""
    powered = probabilities ** (1.0 / temperature)
    return powered / powered.sum(dim=-1, keepdim=True)


def view_targets(probabilities: Tensor, temperature: float) -> Tensor:
    """What each view should predict, [views, N, C] -> [views, N, C], detached.

    Views 0 and 1 are the large ones: each is the other's target; every further view's target is the mean of both.
    """
    large = sharpen(probabilities[:2].detach(), temperature)
    large = large.masked_fill(large < _FLOOR, 0.0)
    small = large.mean(dim=0, keepdim=True).expand(len(probabilities) - 2, -1, -1)
    return torch.cat([large.flip(0), small])


def cross_entropy(targets: Tensor, probabilities: Tensor) -> Tensor:
    """Mean over all rows of -sum_c targets log probabilities, [..., C] each."""
    return -(targets * probabilities.clamp_min(_TINY).log()).sum(dim=-1).mean()


def snn_loss(probabilities: Tensor, temperature: float) -> Tensor:
    """L_SNN: views of an image agree on its class. probabilities: [views, N, C], the first two views large."""
    return cross_entropy(view_targets(probabilities, temperature), probabilities)


def mem_loss(probabilities: Tensor, temperature: float) -> Tensor:
    """L_MEM: minus the entropy of the mean sharpened prediction; minimizing it spreads predictions over the classes."""
    mean = sharpen(probabilities, temperature).flatten(0, -2).mean(dim=0)
    return torch.special.xlogy(mean, mean.clamp_min(_TINY)).sum()


def lin_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """L_LIN: cross-entropy of the head on labeled views; logits [K, C] with unseen classes masked, labels [K]."""
    return F.cross_entropy(logits.float(), labels)


def kd_loss(logits: Tensor, teacher_logits: Tensor, temperature: float) -> Tensor:
    """Distillation of softened logits [n, C_old] of the old classes; T^2 keeps the gradient's size."""
    targets = (teacher_logits.float() / temperature).softmax(dim=-1)
    return temperature**2 * F.cross_entropy(logits.float() / temperature, targets)


def feature_loss(mapped: Tensor, teacher_projections: Tensor) -> Tensor:
    """Mean squared error between a linear map of the student's projections and the teacher's unit ones, [n, D] each."""
    return F.mse_loss(mapped.float(), F.normalize(teacher_projections.float(), dim=-1))


class _ScaleGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, scale: float) -> Tensor:  # type: ignore[no-untyped-def, override]
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def, override]
        return gradient * ctx.scale, None


def scale_gradient(x: Tensor, scale: float) -> Tensor:
    """``x`` itself, with the gradient that flows back through it scaled.

    The head learns at full strength while lambda_LIN weighs only what reaches the backbone: LARS would normalize a
    small head gradient away, a plain optimizer would not.
    """
    return _ScaleGradient.apply(x, scale)
