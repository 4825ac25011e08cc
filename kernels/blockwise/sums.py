"""Sums of exponentials by class, and what follows from them alone: probabilities and the distillation loss."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .class_rows import ClassRows, Weights


class Sums(NamedTuple):
    """Per-class sums of exponentials: mass [R, n] is in units of exp2(shift); total [n] in units of exp2(top)."""

    mass: Tensor
    total: Tensor
    shift: Tensor | None = None  # [R, n]; [1, n] for soft labels; None without maximum
    top: Tensor | None = None  # [n]

    def scale(self) -> Tensor:
        """Return what turns an exponential of a support of this class into its probability: [R or 1, n]."""
        if self.shift is None or self.top is None:
            return self.total.reciprocal().unsqueeze(0)
        return torch.exp2(self.shift - self.top) / self.total

    def probability(self) -> Tensor:
        """Return mass / total: [R, n]."""
        return self.mass / self.total if self.shift is None else self.mass * self.scale()

    def log_probability(self, ignored: Tensor | None = None) -> Tensor:
        """Return log of mass / total: [R, n], -inf for a class of no mass; 0 where it is ignored [R, n] bool."""
        if self.shift is None or self.top is None:  # not a difference of logarithms up to 1 / temperature
            probability = self.probability()
            # Set before the logarithm: that of 0 takes a CPU ten times as long.
            return (probability if ignored is None else probability.masked_fill_(ignored, 1)).log_()
        logs = self.mass.log() - self.total.log() + (self.shift - self.top) * math.log(2)
        return logs if ignored is None else logs.masked_fill_(ignored, 0)


def cross_entropy(
    teacher: Sums, student: Sums, class_rows: ClassRows, smoothing: float
) -> tuple[Tensor, Callable[[], Weights]]:
    """Return the sum over queries of -sum_c w'_c log w_c, and how to get the weights of its gradient.

    The gradient of the loss with respect to w_c is -w'_c / w_c, and a support's probability is its exponential
    times `scale`. Without smoothing scale / w_c is just 1 / mass_c: no quotient of two tiny numbers is formed.
    """
    target = teacher.probability()
    if not smoothing:
        absent = target == 0
        loss = -(student.log_probability(absent).mul_(target)).sum()

        def weights() -> Weights:
            pull = (target / student.mass).masked_fill_(absent, 0).neg_()
            return _with_bias(pull, target.sum(0) * student.scale(), class_rows)

        return loss, weights

    keep, uniform = 1 - smoothing, smoothing / class_rows.num_classes
    target.mul_(keep).add_(uniform)
    probability = student.probability().mul_(keep).add_(uniform)
    without_row = class_rows.num_classes - class_rows.count
    constant = without_row * target.shape[1] * uniform * math.log(uniform)
    loss = -(probability.log().mul_(target)).sum() - constant

    def smoothed_weights() -> Weights:
        ratio, scale = target / probability, student.scale()
        mean_grad = (ratio * (probability - uniform)).sum(0)
        return _with_bias(ratio.mul_(scale * -keep), mean_grad * scale, class_rows)

    return loss, smoothed_weights


def _with_bias(weights: Tensor, bias: Tensor, class_rows: ClassRows) -> Weights:
    """With integer labels the bias of every support can be part of its class's weight."""
    return (weights, bias.squeeze(0)) if class_rows.soft else (weights.add_(bias), None)
