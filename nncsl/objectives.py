"""The losses beside the nearest-neighbour ones (those are ``kernels.snn_loss`` and ``kernels.nnd_loss``).

Pure functions of tensors, in fp32 whatever the network computes in.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nncsl.kernels import linear
from nncsl.steps.transfer import constant


def lin_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """L_LIN: cross-entropy of the head on labeled views; logits [K, C] with unseen classes masked, labels [K]."""
    return F.cross_entropy(logits.float(), labels)


def kd_loss(logits: Tensor, teacher_logits: Tensor, temperature: float) -> Tensor:
    """Distillation of softened logits [n, C_old] of the old classes; T^2 keeps the gradient's size."""
    return temperature**2 * softened_loss(logits, teacher_logits, temperature)


def softened_loss(logits: Tensor, teacher_logits: Tensor, temperature: float) -> Tensor:
    """Cross-entropy with the teacher's softened outputs as targets; logits [n, C_old] each, divided by temperature."""
    targets = (teacher_logits.float() / temperature).softmax(dim=-1)
    return F.cross_entropy(logits.float() / temperature, targets)


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
    """Return ``x`` itself, with the gradient that flows back through it scaled; none flows back with scale 0.

    The head learns at full strength while lambda_LIN weighs only what reaches the backbone: LARS would normalize a
    small head gradient away, a plain optimizer would not.
    """
    return _ScaleGradient.apply(x, scale) if scale else x.detach()


class _Arrange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, sizes: list[int], large_and_supports: Tensor, *small: Tensor) -> tuple[Tensor, ...]:  # type: ignore[no-untyped-def, override]
        first = sum(sizes)
        large, *supports = large_and_supports[:first].split(sizes)
        ctx.sizes, ctx.others = [len(large), *map(len, small)], len(large_and_supports) - first
        return torch.cat([large, *small]) if small else large, *supports

    @staticmethod
    def backward(ctx, queries: Tensor, *supports: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[no-untyped-def, override]
        large, *small = queries.split(ctx.sizes)
        others = [large.new_zeros(ctx.others, large.shape[1])] if ctx.others else []
        return None, torch.cat([large, *supports, *others]), *small


def arrange(large_and_supports: Tensor, small: Sequence[Tensor], sizes: Sequence[int]) -> tuple[Tensor, ...]:
    """Return queries, the rows of large and then of small views, and the supports in parts.

    large_and_supports [n, D]: rows of large views, then of each part of the supports, as many as ``sizes`` say; others
    after them are left out. One operation forward and one backward; slices and a concatenation would start seven.
    """
    return _Arrange.apply(list(sizes), large_and_supports, *small)  # type: ignore[no-any-return]


def head_loss(features: Tensor, head: nn.Linear, labels: Tensor, unseen: Tensor, scale: float) -> Tensor:
    """L_LIN of the last rows of features [n, F], labels [K]; unseen: bool [C], classes that count for nothing.

    The head learns at full strength, ``scale`` weighs what reaches the features.
    """
    if linear.takes(features, labels, head.out_features):
        return linear.cross_entropy(features if scale else features.detach(), head, labels, unseen, scale)
    rows = scale_gradient(features[len(features) - len(labels) :], scale)
    return lin_loss(head(rows).masked_fill(unseen, float("-inf")), labels)


def plus(one: Tensor | None, other: Tensor, weight: float = 1.0) -> Tensor:
    """Return one + weight * other, starting no more than that takes; None is 0."""
    weighted = other if weight == 1 else weight * other
    return weighted if one is None else one + weighted


def positions(labels: Tensor, within: tuple[int, ...]) -> Tensor:
    """Return where each label stands in ``within``, which holds all of them: int64 of the same shape."""
    return constant(tuple(places(within).tolist()), labels.device, torch.int64)[labels]


def places(within: Sequence[int]) -> np.ndarray:
    """Return where each class stands in ``within``, -1 for those that don't: int64 [largest class + 1]."""
    table = np.full(max(within) + 1, -1)
    table[list(within)] = np.arange(len(within))
    return table
