"""Gaussian blur of a batch, each view by its own sigma."""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from nncsl.data.crops import to_integers


def blur(levels: Tensor, weights: Tensor) -> Tensor:
    """Blur levels [n, C, size, size] in place along columns, then along rows, each rounded; weights [n, taps].

    Weights and levels are integers (the weights of 2^16), so that every sum is exact. The image is mirrored at its ends
    and laid out as one line; an output is then a weighted sum of neighbors, which are steps of one apart along columns
    and steps of one padded row apart along rows.
    """
    height, width = levels.shape[2:]
    radius = weights.shape[1] // 2
    row = width + 2 * radius
    line = F.pad(levels, (radius,) * 4, mode="reflect").flatten(1)
    for step in (1, row):
        neighbors = line.unfold(1, line.shape[1] - 2 * radius * step, step).unbind(1)
        line = torch.full_like(neighbors[0], 0.5)
        for neighbor, weight in zip(neighbors, weights.unsqueeze(1).unbind(2), strict=True):
            line.addcmul_(neighbor, weight)
        line.floor_()
    return levels.copy_(line.as_strided(levels.shape, (line.shape[1], row * (height + 2 * radius), row, 1)))


def gaussian_weights(sigma: np.ndarray, most: int) -> np.ndarray:
    """Return multiples of 2^-16 [n, 2 radius + 1] that sum to about 1: Gaussians cut at 4 sigma [n] and at `most`."""
    width = sigma[:, None]
    radius = min(int(np.ceil(4.0 * width.max())), most)
    steps = np.arange(-radius, radius + 1)
    return to_integers(np.exp(-0.5 * np.square(steps / width)) * (np.abs(steps) <= 4.0 * width)) * np.float32(2.0**-16)
