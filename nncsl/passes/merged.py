"""BatchNorm that trains, in a pass that ranks share and that runs in one piece: statistics are the whole batch's."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nncsl.passes.moments import BatchNorm, Moments, Units, merge


@contextmanager
def statistics(network: nn.Module, units: Units) -> Iterator[None]:
    """Make every BatchNorm that trains normalize with the moments of all units while the block lasts."""
    training = [m for m in network.modules() if isinstance(m, BatchNorm) and m.training]
    for norm in training:
        norm.forward = partial(_normalized, norm, units)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for norm in training:
            del norm.forward


def _normalized(norm: BatchNorm, units: Units, x: Tensor) -> Tensor:
    return _Merged.apply(x, norm.weight, norm.bias, norm, units)  # type: ignore[no-any-return]


class _Merged(torch.autograd.Function):
    """x [n, C, ...] normalized; the gradient is that of one BatchNorm over all units' rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, norm: BatchNorm, units: Units) -> Tensor:
        mine = Moments()
        mine.add(x)
        mean, variance, ctx.values = merge([mine], units).finish(norm)
        ctx.units, ctx.eps = units, norm.eps
        ctx.save_for_backward(x, weight, mean, variance)
        return F.batch_norm(x, mean, variance, weight, bias, training=False, eps=norm.eps)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight, mean, variance = ctx.saved_tensors
        shape, dims = [1, -1] + [1] * (x.ndim - 2), [d for d in range(x.ndim) if d != 1]
        scale = torch.rsqrt(variance + ctx.eps)
        dy = gradient.to(mean.dtype)
        xhat = (x - mean.view(shape)) * scale.view(shape)
        sums = torch.stack([dy.sum(dim=dims), (dy * xhat).sum(dim=dims)])
        whole = ctx.units.total([sums.flatten()]).view_as(sums) / ctx.values
        dx = (dy - whole[0].view(shape) - xhat * whole[1].view(shape)) * (weight * scale).view(shape)
        return dx.to(x.dtype), sums[1].to(weight.dtype), sums[0].to(weight.dtype), None, None
