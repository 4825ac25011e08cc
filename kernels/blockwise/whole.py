"""One block holds everything: the blockwise maths without its loops, for problems that fit the cache.

At the sizes of a training step (a thousand queries, tens to hundreds of supports) the time goes into starting
operations, so there are as few as possible here. The exponentials are kept for the backward.
"""

import math

import torch
from torch import Tensor

from ..reference import EPS
from .block_loop import COLDEST_WITHOUT_MAXIMUM, Sums
from .class_rows import ClassRows

LIMIT = 1 << 20  # similarities: 4 MiB of fp32


def fits(queries: Tensor, class_rows: ClassRows, temperature: float) -> bool:
    return queries.shape[0] * class_rows.num_supports <= LIMIT and temperature >= COLDEST_WITHOUT_MAXIMUM


class Whole:
    """Unit supports against queries of any length: the query's scale is applied to [K, N], smaller than [N, D]."""

    def __init__(
        self,
        queries: Tensor,
        query_scale: Tensor,
        supports: Tensor,
        support_scale: Tensor,
        class_rows: ClassRows,
        temperature: float,
    ) -> None:
        self.rows = class_rows.used
        self.all_supports = supports
        if self.rows is not None:
            supports, support_scale = supports[self.rows], support_scale[self.rows]
        self.query_scale, self.support_scale = query_scale, support_scale
        self.temperature = temperature
        self.queries = queries.to(query_scale.dtype)
        self.units = supports * support_scale

    def exponentials(self, out: Tensor | None = None) -> Tensor:
        """[K, N]"""
        scale = self.query_scale.t() * (math.log2(math.e) / self.temperature)
        return torch.mm(self.units, self.queries.t(), out=out).mul_(scale).exp2_()

    def gradients(
        self, grad: Tensor, factor: float, need_queries: bool, need_supports: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        """factor * grad [K, N] of the logits -> gradients of the queries [N, D] and of all supports [K, D].

        Overwrites grad.
        """
        dq = ds = None
        grad *= self.query_scale.t() * (factor / self.temperature)
        if need_queries:
            dq = torch.mm(grad.t(), self.units)
            along = (self.queries * dq).sum(1, keepdim=True).mul_(self.query_scale.square().neg_())
            dq.addcmul_(self.queries, _of_units(along, self.query_scale))
        if need_supports:
            ds = torch.mm(grad, self.queries)
            along = (self.units * ds).sum(1, keepdim=True).neg_()
            ds.addcmul_(self.units, _of_units(along, self.support_scale)).mul_(self.support_scale)
            if self.rows is not None:
                ds = ds.new_zeros(self.all_supports.shape).index_copy_(0, self.rows, ds)
        return dq, ds


def _of_units(along: Tensor, scale: Tensor) -> Tensor:
    """A vector shorter than EPS is only divided by a constant: nothing of its gradient is taken away."""
    return along.masked_fill_(scale >= 1 / EPS, 0)


def sums(values: Tensor, class_rows: ClassRows) -> Sums:
    """Class masses and totals of the exponentials [K, N]."""
    mass = values.new_zeros(class_rows.count, values.shape[1])
    class_rows.add(mass, values, 0, class_rows.num_supports)
    return Sums(mass, (values if class_rows.soft else mass).sum(0), None, None)


def logit_grad(values: Tensor, weights: Tensor, bias: Tensor | None, class_rows: ClassRows) -> Tensor:
    """exponentials [K, N] * weights of their class (+ bias)"""
    grad = class_rows.spread(weights, 0, class_rows.num_supports)
    if bias is not None:
        grad += bias
    return grad.mul_(values)
