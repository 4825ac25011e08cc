"""All supports against a group of queries, block by block: the loops that the blockwise back end is made of.

Supports are visited in blocks small enough for the cache, with similarities laid out [supports, queries], so
that a sum over the supports of a class is a sum of rows and needs neither a one-hot product nor a sort. Logits
are in base 2 (exp2 takes half the time of exp on CPU) with log2(e) / temperature folded into the queries.

Since |cos| <= 1 the exponentials of moderate temperatures cannot leave the range of fp32, and no maximum is
subtracted. For cold temperatures (below 1/40) a first pass finds the maximum per class and query.
"""

import math

import torch
from torch import Tensor

from .class_rows import Weights
from .sums import Sums
from .units import Side

BLOCK_ELEMENTS = 1 << 19  # similarities per block: 2 MiB of fp32, measured best on CPUs with 0.5-1 MiB of L2 per core


def gradient_factors(temperature: float) -> tuple[float, float]:
    """Return what `BlockLoop.gradients` leaves out of the gradients of query and support unit vectors.

    The gradient of a cosine is 1 / temperature times that of its logit; for supports log2(e) / temperature of it
    is already in the scaled queries.
    """
    return 1 / temperature, math.log(2)


class BlockLoop:
    """All supports against the queries from start to stop: the loops over blocks."""

    def __init__(self, side: Side, start: int, stop: int) -> None:
        self.scaled = side.queries.rows(start, stop, math.log2(math.e) / side.temperature)
        self.supports, self.class_rows = side.supports, side.class_rows
        self.cold, self.first = side.cold, start == 0
        count = side.class_rows.num_supports
        self.block = min(max(BLOCK_ELEMENTS // (stop - start), 32), 4096, count)
        self.blocks = [(i, min(i + self.block, count)) for i in range(0, count, self.block)]

    def buffer(self, rows: int | None = None) -> Tensor:
        """Return room for the similarities of some supports (by default one block) with all queries."""
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
            shared = self.class_rows.soft or shift.shape[0] == 1
            logits -= shift if shared else shift[self.class_rows.labels[start:stop]]
        return logits.exp2_()

    def sums(self, kept: Tensor | None = None) -> Sums:
        """Return class masses and totals; `kept` [K, n], if given, receives the exponentials."""
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
            return Sums(mass, mass.sum(0) if total is None else total)
        top = shift.amax(0)
        return Sums(mass, (mass * torch.exp2(shift - top)).sum(0) if total is None else total, shift, top)

    def gradients(
        self,
        weights: Weights,
        shift: Tensor | None,
        kept: Tensor | None,
        query_grad: Tensor | None,
        support_grad: Tensor | None,
    ) -> None:
        """Write the gradients of the unit vectors, up to gradient_factors: of the queries [n, D], and of the supports
        [K, D], to which all loops but the first one add. Exponentials are in units of exp2(shift)."""
        scratch = self.buffer()
        # The transposed product is the faster one of the two on CPU.
        transposed = None if query_grad is None else query_grad.new_empty(query_grad.shape[1], query_grad.shape[0])
        buffer = self.buffer() if kept is None else kept
        for start, stop in self.blocks:
            size = stop - start
            values = self._exponentials(start, stop, shift, buffer[:size]) if kept is None else kept[start:stop]
            grad = self.class_rows.logit_grad(values, weights, start, stop, scratch[:size])
            if support_grad is not None:
                support_grad[start:stop].addmm_(grad, self.scaled, beta=0 if self.first else 1)
            if transposed is not None:
                transposed.addmm_(self.supports.rows(start, stop).t(), grad, beta=int(start > 0))
        if query_grad is not None and transposed is not None:
            query_grad.copy_(transposed.t())
