"""A problem as the kernels take it: contiguous tensors, tile sizes, numbers and constants."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..problem import Problem
from ..reference import EPS
from ..targets import Plan, arch_of, plan

LN_2 = math.log(2)


class Given(NamedTuple):
    """A problem as kernels take it."""

    problem: Problem
    queries: Tensor  # contiguous
    supports: Tensor  # contiguous
    mask: Tensor  # bytes, or labels if there is no mask: something to point to
    plan: Plan

    @property
    def sizes(self) -> tuple[int, int, int]:
        """N, K, C."""
        return self.queries.shape[0], self.supports.shape[0], self.problem.num_classes

    @property
    def scale(self) -> float:
        return 1 / (LN_2 * self.problem.temperature)

    @property
    def smoothed(self) -> tuple[float, float]:
        """What a probability is multiplied by, and what is added."""
        smoothing = self.problem.smoothing
        return 1 - smoothing, smoothing / self.problem.num_classes

    @property
    def levels(self) -> int:
        """Windows of 100 powers of two in which a class's sum may lie; see small.py."""
        span = 2 * self.scale
        return 1 if span <= 120 or self.problem.smoothing else math.ceil((span + 20) / 100)

    @property
    def vectors(self) -> dict[str, Any]:
        """Constants of kernels that load vectors."""
        return {"D": self.queries.shape[1], "DP": self.plan.width, "EPS": EPS}

    @property
    def flags(self) -> dict[str, Any]:
        return {"MASKED": self.problem.mask is not None, "SMOOTH": self.problem.smoothing > 0}


def given(problem: Problem) -> Given:
    mask = problem.labels if problem.mask is None else problem.mask.view(torch.uint8).contiguous()
    chosen = plan(problem.queries.shape[1], problem.half, arch_of(problem.device))
    problem = problem._replace(labels=problem.labels.contiguous())
    return Given(problem, problem.queries.contiguous(), problem.supports.contiguous(), mask, chosen)


def new(like: Given, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(*shape, dtype=dtype, device=like.queries.device)


def empty_state(x: Given) -> Tensor:
    """Return room for the state [3N + K]: see problem.Forward."""
    return new(x, 3 * x.queries.shape[0] + x.supports.shape[0])


def forward_constants(x: Given) -> dict[str, Any]:
    tile = x.plan.forward
    return {
        **x.vectors, **x.flags, "BN": tile.queries, "BK": tile.supports, "BC": tile.classes, "HALF": x.plan.half,
        "PRECISION": x.plan.precision, "SUM_PRECISION": x.plan.sum_precision,
        "num_warps": tile.warps, "num_stages": tile.stages,
    }  # fmt: skip
