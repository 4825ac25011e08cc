"""Gaussian blur of a batch, each view by its own sigma."""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from nncsl.data.crops import to_integers, to_levels


def blur(levels: Tensor, sigma: np.ndarray) -> Tensor:
    """Blur levels [n, C, size, size] in place along columns, then along rows, each rounded; sigma [n] > 0 in pixels.

    Weights and levels are integers, so that every sum is exact. The image is mirrored at its ends and laid out as one
    line; an output is then a weighted sum of neighbors, which are steps of one apart along columns and steps of one
    padded row apart along rows.
    """
    n, channels, height, width = levels.shape
    weights = torch.from_numpy(gaussian_weights(sigma, min(height, width) - 1)).to(levels.device)
    radius = weights.shape[1] // 2
    row = width + 2 * radius
    line = F.pad(levels, (radius,) * 4, mode="reflect").flatten(1)
    for step in (1, row):
        stop = line.shape[1] - 2 * radius * step
        sums = line[:, :stop] * weights[:, :1]
        for tap in range(1, 2 * radius + 1):
            sums.addcmul_(line[:, tap * step : tap * step + stop], weights[:, tap : tap + 1])
        line = to_levels(sums)
    return levels.copy_(line.as_strided(levels.shape, (line.shape[1], row * (height + 2 * radius), row, 1)))


def gaussian_weights(sigma: np.ndarray, most: int) -> np.ndarray:
    """Return integers [n, 2 radius + 1] that sum to about 2^16: a Gaussian cut at four sigma [n] and at `most` pixels."""
    width = sigma[:, None]
    radius = min(int(np.ceil(4.0 * width.max())), most)
    steps = np.arange(-radius, radius + 1)
    return to_integers(np.exp(-0.5 * np.square(steps / width)) * (np.abs(steps) <= 4.0 * width))
