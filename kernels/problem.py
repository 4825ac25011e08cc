"""What the back ends are given: one tuple, so that a new argument is added in one place."""

from typing import NamedTuple

import torch
from torch import Tensor

from .operators import transformed

COLDEST_WITHOUT_MAXIMUM = 1 / 40  # exp(1 / temperature) and the products with it stay far inside fp32


class Problem(NamedTuple):
    """Queries to be classified by labeled supports; the arguments were checked."""

    queries: Tensor  # [N, D]
    supports: Tensor  # [K, D]
    labels: Tensor  # [K] integers in [0, C), or [K, C] floating class weights
    mask: Tensor | None  # [K] bool, True where the support is used
    num_classes: int
    temperature: float
    smoothing: float
    log: bool = False  # whether logarithms of probabilities are wanted
    in_order: bool = False  # whether labels are known to ascend, and all supports are used

    @property
    def device(self) -> torch.device:
        return self.queries.device

    @property
    def cold(self) -> bool:
        """Whether a maximum has to be subtracted from the logits before the exponential."""
        return self.temperature < COLDEST_WITHOUT_MAXIMUM

    @property
    def half(self) -> bool:
        """Whether vectors can be multiplied in their own half-precision type: fp16, or bf16, but not both."""
        return self.queries.dtype == self.supports.dtype and self.queries.dtype in (torch.float16, torch.bfloat16)

    def to(self, dtype: torch.dtype) -> "Problem":
        """Return the same with vectors of another type."""
        return self._replace(queries=self.queries.to(dtype), supports=self.supports.to(dtype))

    def needs_grad(self) -> tuple[bool, bool]:
        """Return whether the queries and whether the supports are to be differentiated."""
        if transformed():  # of torch.func: what an outer transform differentiates can't be seen from inside
            return True, True
        enabled = torch.is_grad_enabled()
        return enabled and self.queries.requires_grad, enabled and self.supports.requires_grad


class Forward(NamedTuple):
    """What `snn_forward` of a streaming back end gives, and sees again in its `snn_backward`."""

    output: Tensor  # [N, C]: probabilities, or their logarithms
    state: Tensor  # [3N + K]: each query's total, in units of 2^top; top; inverse lengths of queries and supports
    kept: Tensor  # the exponentials [K, N], if they were to be kept


def working_dtype(*problems: Problem) -> torch.dtype:
    """Return fp64 if any vectors are fp64, else fp32: lower precisions are for storage only."""
    for problem in problems:
        if torch.float64 in (problem.queries.dtype, problem.supports.dtype):
            return torch.float64
    return torch.float32
