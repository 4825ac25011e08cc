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
        if len(x):  # with fixed statistics: one kernel for all three
            dx, sum_dy_xhat, sum_dy = torch.ops.aten.native_batch_norm_backward(
                gradient, x, weight, mean, variance, None, None, False, ctx.eps, [True, True, True]
            )
        else:
            dx, sum_dy_xhat, sum_dy = gradient.clone(), torch.zeros_like(weight), torch.zeros_like(weight)
        # What the statistics add, as in passes.batchnorm: factor * (sum_dy + xhat * sum_dy_xhat).
        whole_dy, whole_dy_xhat = ctx.units.total([torch.cat([sum_dy, sum_dy_xhat])]).chunk(2)
        scale = torch.rsqrt(variance + ctx.eps)
        factor = weight * scale / ctx.values
        slope = factor * scale * whole_dy_xhat
        offset = factor * whole_dy - slope * mean
        shape = [1, -1] + [1] * (x.ndim - 2)
        dx.sub_((x * slope.view(shape)).add_(offset.view(shape)).to(dx.dtype))
        return dx, sum_dy_xhat, sum_dy, None, None
