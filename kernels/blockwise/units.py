"""Vectors of any length seen as unit vectors, without a copy of them all, and the way back for gradients."""

from typing import NamedTuple

import torch
from torch import Tensor

from ..problem import Problem
from ..reference import EPS
from .class_rows import ClassRows


class Units(NamedTuple):
    """Rows of `raw` [n, D] brought to unit length on demand by `scale` [n, 1]."""

    raw: Tensor
    scale: Tensor

    def rows(self, start: int, stop: int, factor: float = 1.0) -> Tensor:
        """Return factor * the unit vectors from start to stop."""
        scale = self.scale[start:stop]
        return self.raw[start:stop].to(scale.dtype) * (scale if factor == 1 else scale * factor)

    def empty_grad(self) -> Tensor:
        """Return room for a gradient [n, D] in the working precision."""
        return torch.empty_like(self.raw, dtype=self.scale.dtype)


def inverse_lengths(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return what brings each row of x [n, D] to unit length: [n, 1]."""
    return torch.linalg.vector_norm(x, dim=1, keepdim=True, dtype=dtype).clamp_min_(EPS).reciprocal_()


class Side(NamedTuple):
    """A problem made ready: a distillation has two sides, the student's and the teacher's, with the same classes."""

    queries: Units
    supports: Units  # the used ones
    class_rows: ClassRows
    temperature: float
    cold: bool  # whether a maximum has to be subtracted

    @classmethod
    def of(cls, problem: Problem, query_scale: Tensor, support_scale: Tensor, class_rows: ClassRows) -> "Side":
        """Return the side of a problem, given inverse lengths of all its vectors."""
        supports = Units(class_rows.only_used(problem.supports), class_rows.only_used(support_scale))
        return cls(Units(problem.queries, query_scale), supports, class_rows, problem.temperature, problem.cold)


def zero_if_short_(along: Tensor, scale: Tensor) -> Tensor:
    """In place: a vector shorter than EPS is only divided by a constant, nothing of its gradient is taken away."""
    return along.masked_fill_(scale >= 1 / EPS, 0)


def through_units_(grad: Tensor, x: Units, factor: float) -> None:
    """In place: the gradient with respect to `x.raw`, given factor * grad with respect to the unit vectors."""
    for start in range(0, grad.shape[0], 4096):
        block, scale = grad[start : start + 4096], x.scale[start : start + 4096]
        unit = x.rows(start, start + 4096)
        along = zero_if_short_((unit * block).sum(dim=1, keepdim=True), scale)
        block.addcmul_(unit, along, value=-1).mul_(scale * factor)
