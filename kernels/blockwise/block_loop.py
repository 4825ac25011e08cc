"""All supports against a group of queries, block by block: the loops that the blockwise back end is made of.

Supports are visited in blocks small enough for the cache, with similarities laid out [supports, queries], so
that a sum over the supports of a class is a sum of rows and needs neither a one-hot product nor a sort. Logits
are in base 2 (exp2 takes half the time of exp on CPU) with log2(e) / temperature folded into the queries.

Since |cos| <= 1 the exponentials of moderate temperatures cannot leave the range of fp32, and no maximum is
subtracted. For cold temperatures (below 1/40) a first pass finds the maximum per class and query.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..reference import EPS
from .class_rows import ClassRows

BLOCK_ELEMENTS = 1 << 19  # similarities per block: 2 MiB of fp32, measured best on CPUs with 0.5-1 MiB of L2 per core
COLDEST_WITHOUT_MAXIMUM = 1 / 40  # exp(1 / temperature) and the products with it stay far inside fp32


@dataclass(frozen=True)
class Units:
    """Rows of `raw` [n, D] brought to unit length on demand by `scale` [n, 1]."""

    raw: Tensor
    scale: Tensor

    def rows(self, start: int, stop: int, factor: float = 1.0) -> Tensor:
        """factor * the unit vectors from start to stop."""
        scale = self.scale[start:stop]
        return self.raw[start:stop].to(scale.dtype) * (scale if factor == 1 else scale * factor)


class Sums(NamedTuple):
    """Per-class sums of exponentials: mass [R, n] is in units of exp2(shift); total [n] in units of exp2(top)."""

    mass: Tensor
    total: Tensor
    shift: Tensor | None  # [R, n]; [1, n] for soft labels; None without maximum
    top: Tensor | None  # [n]

    def scale(self) -> Tensor:
        """What turns an exponential of a support of this row into its probability: [R or 1, n]."""
        if self.shift is None or self.top is None:
            return self.total.reciprocal().unsqueeze(0)
        return torch.exp2(self.shift - self.top) / self.total

    def probability(self) -> Tensor:
        """[R, n]"""
        return self.mass / self.total if self.shift is None else self.mass * self.scale()

    def log_probability(self) -> Tensor:
        """log of mass / total: [R, n], -inf for a row of no mass."""
        logs = self.mass.log() - self.total.log()
        return logs if self.shift is None or self.top is None else logs + (self.shift - self.top) * math.log(2)


def inverse_lengths(x: Tensor, dtype: torch.dtype) -> Tensor:
    """[n, D] -> [n, 1]: what brings each row to unit length."""
    return torch.linalg.vector_norm(x, dim=1, keepdim=True, dtype=dtype).clamp_min_(EPS).reciprocal_()


def gradient_factors(temperature: float) -> tuple[float, float]:
    """What `BlockLoop.gradients` leaves out of the gradients of query and support unit vectors.

    The gradient of a cosine is 1 / temperature times that of its logit; for supports log2(e) / temperature of it
    is already in the scaled queries.
    """
    return 1 / temperature, math.log(2)


def through_units_(grad: Tensor, x: Units, factor: float) -> Tensor:
    """In place: the gradient with respect to `x.raw`, given factor * grad with respect to the unit vectors."""
    for start in range(0, grad.shape[0], 4096):
        block, scale = grad[start : start + 4096], x.scale[start : start + 4096]
        unit = x.rows(start, start + 4096)
        along = (unit * block).sum(dim=1, keepdim=True)
        along.masked_fill_(scale >= 1 / EPS, 0)  # a vector shorter than EPS is only divided by a constant
        block.addcmul_(unit, along, value=-1).mul_(scale * factor)
    return grad


class BlockLoop:
    """All supports against the queries from start to stop: the loops over blocks."""

    def __init__(
        self, queries: Units, start: int, stop: int, supports: Units, class_rows: ClassRows, temperature: float
    ) -> None:
        self.scaled = queries.rows(start, stop, math.log2(math.e) / temperature)
        self.supports, self.class_rows = supports, class_rows
        self.cold = temperature < COLDEST_WITHOUT_MAXIMUM
        self.block = min(max(BLOCK_ELEMENTS // (stop - start), 32), 4096, class_rows.num_supports)
        self.blocks = [
            (i, min(i + self.block, class_rows.num_supports)) for i in range(0, class_rows.num_supports, self.block)
        ]

    def buffer(self, rows: int | None = None) -> Tensor:
        """Room for the similarities of some supports (by default one block) with all queries."""
        return self.scaled.new_empty(self.block if rows is None else rows, self.scaled.shape[0])

    def _logits(self, start: int, stop: int, out: Tensor) -> Tensor:
        return torch.mm(self.supports.rows(start, stop), self.scaled.t(), out=out)

    def _maximum(self) -> Tensor:
        rows = 1 if self.class_rows.soft else self.class_rows.count
        shift = self.scaled.new_full((rows, self.scaled.shape[0]), -math.inf)
        buffer = self.buffer()
        for start, stop in self.blocks:
            self.class_rows.maximum(shift, self._logits(start, stop, buffer[: stop - start]), start, stop)
        return shift

    def _exponentials(self, start: int, stop: int, shift: Tensor | None, out: Tensor) -> Tensor:
        logits = self._logits(start, stop, out)
        if shift is not None:
            logits -= (
                shift if self.class_rows.soft or shift.shape[0] == 1 else shift[self.class_rows.labels[start:stop]]
            )
        return logits.exp2_()

    def sums(self, kept: Tensor | None = None) -> Sums:
        """Class masses and totals; `kept` [K, n], if given, receives the exponentials."""
        shift = self._maximum() if self.cold else None
        mass = self.scaled.new_zeros(self.class_rows.count, self.scaled.shape[0])
        total = self.scaled.new_zeros(self.scaled.shape[0]) if self.class_rows.soft else None
        buffer = self.buffer() if kept is None else kept
        for start, stop in self.blocks:
            out = buffer[: stop - start] if kept is None else kept[start:stop]
            values = self._exponentials(start, stop, shift, out)
            self.class_rows.add(mass, values, start, stop)
            if total is not None:
                total += values.sum(0)
        if shift is None:
            return Sums(mass, mass.sum(0) if total is None else total, None, None)
        top = shift.amax(0)
        return Sums(mass, (mass * torch.exp2(shift - top)).sum(0) if total is None else total, shift, top)

    def gradients(
        self,
        weights: Tensor,
        bias: Tensor | None,
        shift: Tensor | None,
        kept: Tensor | None,
        query_grad: Tensor | None,
        support_grad: Tensor | None,
        add_to_supports: bool,
    ) -> None:
        """Write the gradient [n, D], write or add to the gradient [K, D] of the unit vectors, up to gradient_factors.

        The gradient of a logit is its exponential (in units of exp2(shift)) times weights[row] (+ bias).
        """
        scratch = self.buffer()
        # The transposed product is the faster one of the two on CPU.
        transposed = None if query_grad is None else query_grad.new_empty(query_grad.shape[1], query_grad.shape[0])
        buffer = self.buffer() if kept is None else kept
        for start, stop in self.blocks:
            size = stop - start
            values = self._exponentials(start, stop, shift, buffer[:size]) if kept is None else kept[start:stop]
            grad = self.class_rows.spread(weights, start, stop, scratch[:size])
            if bias is not None:
                grad += bias
            grad *= values
            if support_grad is not None:
                support_grad[start:stop].addmm_(grad, self.scaled, beta=int(add_to_supports))
            if transposed is not None:
                transposed.addmm_(self.supports.rows(start, stop).t(), grad, beta=int(start > 0))
        if query_grad is not None and transposed is not None:
            query_grad.copy_(transposed.t())
