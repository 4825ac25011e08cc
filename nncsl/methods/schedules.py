"""Schedules: what part of its peak rate an optimizer has at a part of a phase, from 0 to (not including) 1."""

import math
from collections.abc import Callable, Sequence

from nncsl.config import Config

Rate = Callable[[float], float]


def constant() -> Rate:
    """Return the peak rate, always."""
    return lambda progress: 1.0


def cosine(end: float = 0.0) -> Rate:
    """Return half a cosine from the peak down to ``end`` of it."""
    return lambda progress: end + (1 - end) * 0.5 * (1 + math.cos(math.pi * progress))


def milestones(at: Sequence[float], factor: float) -> Rate:
    """Return the peak, multiplied by ``factor`` once for every part in ``at`` that is over."""
    return lambda progress: factor ** sum(progress >= part for part in at)


def warm_restarts(epochs: int, low: float, first: float) -> Rate:
    """Return cosines from the peak to ``low`` of it, each twice as long: restarts at epochs 1, 2, 4, 8, ...

    Constant within an epoch; ``first`` of the peak in epoch 0. A power of two of epochs ends at the end of a cosine.
    """

    def rate(progress: float) -> float:
        epoch = math.floor(progress * epochs + 1e-9)  # the product may miss a whole number by its rounding
        if not epoch:
            return first
        start = 1 << (epoch.bit_length() - 1)
        return low + (1 - low) * 0.5 * (1 + math.cos(math.pi * (epoch - start) / start))

    return rate


def configured(config: Config) -> Rate:
    """Return linear warm-up from lr_start to lr_peak over warmup_epochs, then a cosine down to lr_end, per step."""
    warmup = config.warmup_epochs / config.epochs
    start, peak, end = config.lr_start, config.lr_peak, config.lr_end

    def rate(progress: float) -> float:
        if progress < warmup:
            return (start + (peak - start) * (progress / warmup)) / peak
        after = (progress - warmup) / (1 - warmup) if warmup < 1 else 0.0
        return (end + (peak - end) * 0.5 * (1 + math.cos(math.pi * after))) / peak

    return rate
