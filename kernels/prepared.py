"""Supports made ready once, for many calls: checked, without those that are not used, in the order of their classes."""

from typing import NamedTuple

import torch
from torch import Tensor

from . import checks


class Prepared(NamedTuple):
    """What `prepare` returns, to be given as `supports`; nothing in it is differentiated."""

    supports: Tensor  # [used, D]
    labels: Tensor  # [used] ascending
    num_classes: int


def prepare(
    supports: Tensor, labels: Tensor, *, num_classes: int | None = None, mask: Tensor | None = None
) -> Prepared:
    """Return supports [K, D] with integer labels [K] for many calls of `snn` and `snn_loss`, as their `supports`.

    What costs time or waits for a device is done here once: checks of values, finding num_classes, dropping what
    the mask leaves out, sorting by class. The supports are constants then, and may not require grad.
    """
    given = checks.checked_problem(supports[:0], supports, labels, mask, num_classes, 1.0, 0.0)
    if labels.dim() != 1:
        raise ValueError(f"labels must be integers [K] to be prepared, got shape {list(labels.shape)}")
    if supports.requires_grad:
        raise ValueError("supports must not require grad to be prepared: pass supports.detach(), or don't prepare them")
    checks.check_values(given)
    if mask is not None:
        supports, labels = supports[mask], labels[mask]
    labels, order = torch.sort(labels, stable=True)
    return Prepared(supports[order].contiguous(), labels, given.num_classes)
