"""One block holds everything: the maths of the loop without the loop, for problems that fit the cache.

At the sizes of a training step (a thousand queries, tens to hundreds of supports) the time goes into starting
operations, so there are as few as possible here. The exponentials are kept for the backward.
"""

import math

import torch
from torch import Tensor

from ..problem import Problem
from .class_rows import ClassRows, Weights
from .sums import Sums
from .units import Side, zero_if_short_

LIMIT = 1 << 20  # similarities: 4 MiB of fp32


def fits(problem: Problem, class_rows: ClassRows) -> bool:
    return problem.queries.shape[0] * class_rows.num_supports <= LIMIT and not problem.cold


class Whole:
    """Unit supports against queries of any length: the query's scale is applied to [K, N], smaller than [N, D]."""

    def __init__(self, side: Side) -> None:
        queries, supports, self.class_rows, self.temperature, _ = side
        self.query_scale, self.support_scale = queries.scale, supports.scale
        self.queries = queries.raw.to(queries.scale.dtype)
        self.units = supports.raw * supports.scale

    def exponentials(self, out: Tensor | None = None) -> Tensor:
        """Return the exponentials [K, N]."""
        scale = self.query_scale.t() * (math.log2(math.e) / self.temperature)
        return torch.mm(self.units, self.queries.t(), out=out).mul_(scale).exp2_()

    def sums(self, values: Tensor) -> Sums:
        """Return class masses and totals of the exponentials [K, N]."""
        mass = values.new_zeros(self.class_rows.count, values.shape[1])
        self.class_rows.add(mass, values, 0, self.class_rows.num_supports)
        return Sums(mass, (values if self.class_rows.soft else mass).sum(0))

    def gradients(
        self, values: Tensor, weights: Weights, factor: float, need_queries: bool, need_supports: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return factor * the gradients of the queries [N, D] and of all supports [K, D], given the exponentials."""
        dq = ds = None
        grad = self.class_rows.logit_grad(values, weights, 0, self.class_rows.num_supports)
        grad *= self.query_scale.t() * (factor / self.temperature)
        if need_queries:
            dq = torch.mm(grad.t(), self.units)
            along = (self.queries * dq).sum(1, keepdim=True).mul_(self.query_scale.square().neg_())
            dq.addcmul_(self.queries, zero_if_short_(along, self.query_scale))
        if need_supports:
            ds = torch.mm(grad, self.queries)
            along = (self.units * ds).sum(1, keepdim=True).neg_()
            ds.addcmul_(self.units, zero_if_short_(along, self.support_scale)).mul_(self.support_scale)
        return dq, self.class_rows.for_all(ds)
