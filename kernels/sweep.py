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

from kernels.labels import Slots
from kernels.reference import EPS

BLOCK_ELEMENTS = 1 << 19  # similarities per block: 2 MiB of fp32, measured best on CPUs with 0.5-1 MiB of L2 per core
COLDEST_WITHOUT_MAXIMUM = 1 / 40  # exp(1 / temperature) and the products with it stay far inside fp32


@dataclass(frozen=True)
class Units:
    """Rows of `raw` scaled to unit length on demand: `raw * scale`."""

    raw: Tensor
    scale: Tensor

    def __getitem__(self, rows: slice) -> Tensor:
        return self.raw[rows].to(self.scale.dtype) * self.scale[rows]


class Sums(NamedTuple):
    """Per-class sums of exponentials: mass [slots, n] is in units of exp2(shift); total [n] in units of exp2(top)."""

    mass: Tensor
    total: Tensor
    shift: Tensor | None  # [slots, n]; [1, n] for soft labels; None without maximum
    top: Tensor | None  # [n]

    def scale(self) -> Tensor:
        """What turns an exponential of a support of this slot into its probability: [slots or 1, n]."""
        if self.shift is None or self.top is None:
            return self.total.reciprocal().unsqueeze(0)
        return torch.exp2(self.shift - self.top) / self.total

    def log_probability(self) -> Tensor:
        """log of mass / total: [slots, n], -inf for a slot of no mass."""
        logs = self.mass.log() - self.total.log()
        return logs if self.shift is None or self.top is None else logs + (self.shift - self.top) * math.log(2)


def units(x: Tensor, dtype: torch.dtype) -> Units:
    length = torch.linalg.vector_norm(x, dim=1, keepdim=True, dtype=dtype)
    return Units(x, length.clamp_min_(EPS).reciprocal_())


def through_units_(grad: Tensor, x: Units, factor: float) -> Tensor:
    """In place: the gradient with respect to `x.raw`, given factor * grad with respect to the unit vectors."""
    for start in range(0, len(grad), 4096):
        rows = slice(start, start + 4096)
        unit, scale, block = x[rows], x.scale[rows], grad[rows]
        along = (unit * block).sum(dim=1, keepdim=True)
        along.masked_fill_(scale >= 1 / EPS, 0)  # a vector shorter than EPS is only divided by a constant
        block.addcmul_(unit, along, value=-1).mul_(scale * factor)
    return grad


class Sweep:
    """All supports against one group of queries: the loops over blocks."""

    def __init__(self, queries: Tensor, supports: Units, slots: Slots, temperature: float) -> None:
        self.queries = queries  # [n, D] unit vectors
        self.scaled = queries * (math.log2(math.e) / temperature)
        self.supports, self.slots = supports, slots
        self.cold = temperature < COLDEST_WITHOUT_MAXIMUM
        n = max(1, len(queries))
        block = min(max(BLOCK_ELEMENTS // n, 32), 4096, slots.num_supports)
        self.blocks = [(i, min(i + block, slots.num_supports)) for i in range(0, slots.num_supports, block)]
        self.buffer = queries.new_empty(block, len(queries))

    def _logits(self, start: int, stop: int, out: Tensor) -> Tensor:
        return torch.mm(self.supports[start:stop], self.scaled.t(), out=out)

    def _maximum(self) -> Tensor:
        rows = 1 if self.slots.soft else self.slots.count
        shift = self.scaled.new_full((rows, len(self.scaled)), -math.inf)
        for start, stop in self.blocks:
            self.slots.maximum(shift, self._logits(start, stop, self.buffer[: stop - start]), start, stop)
        return shift

    def _exponentials(self, start: int, stop: int, shift: Tensor | None, out: Tensor) -> Tensor:
        logits = self._logits(start, stop, out)
        if shift is not None:
            logits -= shift if self.slots.soft or len(shift) == 1 else shift[self.slots.labels[start:stop]]
        return logits.exp2_()

    def sums(self, kept: Tensor | None = None) -> Sums:
        """Class masses and totals; `kept` [K, n], if given, receives the exponentials."""
        shift = self._maximum() if self.cold else None
        mass = self.scaled.new_zeros(self.slots.count, len(self.scaled))
        total = self.scaled.new_zeros(len(self.scaled))
        for start, stop in self.blocks:
            out = self.buffer[: stop - start] if kept is None else kept[start:stop]
            values = self._exponentials(start, stop, shift, out)
            self.slots.add(mass, values, start, stop)
            if self.slots.soft:
                total += values.sum(0)
        if shift is None:
            return Sums(mass, total if self.slots.soft else mass.sum(0), None, None)
        top = shift.amax(0)
        return Sums(mass, total if self.slots.soft else (mass * torch.exp2(shift - top)).sum(0), shift, top)

    def gradients(
        self,
        weights: Tensor,
        bias: Tensor | None,
        shift: Tensor | None,
        kept: Tensor | None,
        query_grad: Tensor | None,
        support_grad: Tensor | None,
    ) -> None:
        """Add to the gradients [n, D] and [K, D] of the unit vectors, up to the factor 1 / temperature.

        The gradient of a logit is its exponential (in units of exp2(shift)) times weights[slot] (+ bias).
        """
        scratch = torch.empty_like(self.buffer)
        for start, stop in self.blocks:
            size = stop - start
            values = self._exponentials(start, stop, shift, self.buffer[:size]) if kept is None else kept[start:stop]
            grad = self.slots.spread(weights, start, stop, scratch[:size])
            if bias is not None:
                grad += bias
            grad *= values
            if support_grad is not None:
                support_grad[start:stop].addmm_(grad, self.queries)
            if query_grad is not None:
                query_grad.addmm_(grad.t(), self.supports[start:stop])
