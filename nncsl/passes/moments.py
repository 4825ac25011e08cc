"""Mean and variance of a batch that comes in parts, some of them in other processes."""

from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

BatchNorm = nn.modules.batchnorm._BatchNorm


class Statistics(NamedTuple):
    """Of the whole batch, per channel: mean, variance, and the number of values."""

    mean: Tensor
    variance: Tensor
    values: int


class Units(Protocol):
    """What a batch is divided into before micro-batches: units, of which this process has some and others the rest."""

    def merged(self, moments: list[Tensor]) -> list[Tensor]:
        """Return the values of all units, in order, from those of this process's units, [n] each."""

    def total(self, values: list[Tensor]) -> Tensor:
        """Return the sum over all units, from this process's, [n] each."""

    def into(self, unit: int) -> AbstractContextManager:
        """Return the block in which the parameters' gradients are a unit's, by its place among this process's."""


class OneUnit:
    """The whole batch, in this process."""

    def merged(self, moments: list[Tensor]) -> list[Tensor]:
        return moments

    def total(self, values: list[Tensor]) -> Tensor:
        return values[0]

    def into(self, unit: int) -> AbstractContextManager:
        return nullcontext()


class Moments:
    """Count, mean and squared differences from it, of a batch that comes in parts, merged without cancellation."""

    def __init__(self) -> None:
        self._count = 0
        self._mean: Tensor | float = 0.0
        self._squares: Tensor | float = 0.0

    def add(self, part: Tensor) -> None:
        """Take in the values of a part [n, C, ...]."""
        count = part.numel() // part.shape[1]
        at_least_single = torch.promote_types(part.dtype, torch.float32)
        if not count:
            zeros = part.new_zeros(part.shape[1], dtype=torch.float64)
            self._mean, self._squares = self._mean + zeros, self._squares + zeros
            return
        dims = [d for d in range(part.ndim) if d != 1]
        variance, mean = torch.var_mean(part.to(at_least_single), dim=dims, correction=0)
        self.join(count, mean.double(), variance.double() * count)

    def join(self, count: int, mean: Tensor, squares: Tensor) -> None:
        """Take in the moments of other values."""
        total = self._count + count
        apart = mean - self._mean
        self._squares = self._squares + squares + apart**2 * (self._count * count / total)
        self._mean = self._mean + apart * (count / total)
        self._count = total

    def packed(self) -> Tensor:
        """Return count, mean and squares in one vector [1 + 2 C]."""
        assert isinstance(self._mean, Tensor) and isinstance(self._squares, Tensor)
        return torch.cat([self._mean.new_tensor([self._count]), self._mean, self._squares])

    def finish(self, norm: BatchNorm) -> Statistics:
        """The statistics, counted into the BatchNorm's running ones."""
        assert isinstance(self._mean, Tensor) and isinstance(self._squares, Tensor)
        assert norm.running_mean is not None and norm.running_var is not None
        if self._count < 2:
            raise ValueError("BatchNorm cannot train on a single value per channel: use batches of 2 or more images")
        kind, rate = norm.running_mean.dtype, norm.momentum or 0.0
        if norm.track_running_stats:
            norm.running_mean.lerp_(self._mean.to(kind), rate)
            norm.running_var.lerp_((self._squares / (self._count - 1)).to(kind), rate)
            assert norm.num_batches_tracked is not None
            norm.num_batches_tracked += 1
        return Statistics(self._mean.to(kind), (self._squares / self._count).to(kind), self._count)


def merge(own: list[Moments], units: Units) -> Moments:
    """Return the moments of all units from this process's."""
    if isinstance(units, OneUnit):
        return own[0]
    whole = Moments()
    for packed in units.merged([each.packed() for each in own]):
        if int(packed[0]):
            whole.join(int(packed[0]), *packed[1:].chunk(2))
    return whole
