"""The SNN objective on probabilities: value and gradient of both terms together.

Plain autograd would run some fifty small operations over [views, C] here, as many as everything else of the step;
sharing the sharpened predictions leaves half of them (measured by `nncsl.benchmarks.kernels_snn_loss`).
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .operators import applied
from .reference import sharpen, targets_of


class SnnLoss(NamedTuple):
    """What `snn_loss` returns: the two terms, scalars, and the most probable class of each view, for the record."""

    cross_entropy: Tensor
    minus_entropy: Tensor
    predictions: Tensor  # int64 [(2 + small_views) N], without gradient


class Objective(torch.autograd.Function):
    """probabilities [(2 + small_views) N, C] -> cross-entropy with the other views, minus entropy of the mean, and
    the gradients of both. No probability may be too small for its dtype: see `reference.objective` for those."""

    generate_vmap_rule = True

    @staticmethod
    def forward(p: Tensor, small_views: int, power: float, needs_grad: bool) -> tuple[Tensor, ...]:
        sharp = sharpen(p, power)
        target = targets_of(sharp, small_views)
        mean = sharp.mean(0)
        # Classes without supports have probability 0 everywhere and take no part: 0 log 0 = 0.
        log_p = torch.where(p == 0, 1.0, p).log_()
        log_mean = torch.where(mean == 0, 1.0, mean).log_()
        entropy = mean @ log_mean
        cross_entropy = (target * log_p).sum() / -p.shape[0]
        if not needs_grad:
            return cross_entropy, entropy, *(p.new_empty(0) for _ in range(2))
        per_view = torch.where(p == 0, 1.0, p).mul_(p.shape[0]).reciprocal_()
        # d entropy / d mean = log mean + 1; the 1 drops out against the normalization of sharpening.
        spread = log_mean - (sharp @ log_mean).unsqueeze(1)
        by_cross_entropy = target.neg_().mul_(per_view)
        return cross_entropy, entropy, by_cross_entropy, spread.mul_(sharp).mul_(per_view).mul_(power)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[2:])
        ctx.save_for_backward(*output[2:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cross_entropy: Tensor, entropy: Tensor, *_: Any) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        by_cross_entropy, by_entropy = ctx.saved_tensors
        return torch.addcmul(by_cross_entropy * cross_entropy, by_entropy, entropy), None, None, None


objective = applied(Objective)
