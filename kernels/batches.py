"""Leading batch dimensions: one problem after the other, or queries of one problem flattened."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Arguments = dict[str, tuple[Tensor | None, int]]
"""Name -> tensor, and how many dimensions it has without leading ones."""


def leads(*vectors: Any) -> bool:
    """Return whether any of the vectors has leading dimensions; labels and mask never lead alone."""
    return any(isinstance(x, Tensor) and x.dim() > 2 for x in vectors)


def leading(arguments: Arguments) -> tuple[int, ...]:
    """Return the leading dimensions that all arguments share, or have none of."""
    found: tuple[int, ...] = ()
    for name, (x, dims) in arguments.items():
        lead = tuple(x.shape[: max(0, x.dim() - dims)]) if isinstance(x, Tensor) else ()
        if lead and found and lead != found:
            raise ValueError(f"{name} must have leading dimensions {list(found)} or none, got {list(lead)}")
        found = found or lead
    return found


def one_by_one(function: Callable[..., Tensor], arguments: Arguments, lead: tuple[int, ...]) -> Tensor:
    """Return the results of every problem, stacked to [*lead, ...]."""
    results = []
    for i in range(math.prod(lead)):
        picked = {
            name: x.flatten(0, len(lead) - 1)[i] if isinstance(x, Tensor) and x.dim() > dims else x
            for name, (x, dims) in arguments.items()
        }
        results.append(function(**picked))
    if not results:
        raise ValueError(f"leading dimensions {list(lead)} leave no problem: drop the empty one")
    return torch.stack(results).unflatten(0, lead)
