"""Herding: which rows stand for all of them (iCaRL's choice of exemplars)."""

import torch
from torch import Tensor


def herd(features: Tensor, count: int) -> Tensor:
    """Return up to ``count`` distinct row numbers, int64; each keeps the mean of the chosen nearest to that of all.

    features [n, D] on the host. Greedy, so that a shorter choice is the beginning of a longer one.
    """
    mean, total = features.mean(0), torch.zeros(features.shape[1])
    squares = features.square().sum(1)
    picked: list[int] = []
    for step in range(1, min(count, len(features)) + 1):
        # |mean - (total + x) / step|^2, up to what does not depend on x
        cost = squares + 2 * features @ (total - step * mean)
        cost[picked] = torch.inf
        picked.append(int(cost.argmin()))
        total += features[picked[-1]]
    return torch.tensor(picked, dtype=torch.int64)
