"""Losses on slices of a head, the outputs of some classes: X-DER has one for each task, past, present and future.

Pure functions, in the precision of their arguments whatever the network computes in (cross-entropy: in fp32).
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from nncsl import objectives
from nncsl.steps.transfer import constant


def slice_loss(logits: Tensor, labels: Tensor, classes: tuple[int, ...]) -> Tensor:
    """Return the cross-entropy over some classes alone: logits [n, C], labels [n] among them."""
    return objectives.lin_loss(
        logits[:, constant(classes, logits.device, torch.int64)], objectives.positions(labels, classes)
    )


def shrunk(logits: Tensor, own: Tensor, factor: float) -> Tensor:
    """Scale rows of logits [n, q] whose largest exceeds ``own`` [n], the label's: it becomes ``factor * own``.

    Where the label's own is not above 0, scaling by it would turn signs round: such rows stay as they are.
    """
    largest = logits.max(dim=1, keepdim=True).values
    own = own[:, None]
    # Divided first: the largest is then 1, hence exactly what it has to be.
    return torch.where((largest > own) & (own > 0), logits / largest * (factor * own), logits)


def supervised_contrast(vectors: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Draw views of one class together and others apart, in each of m slices: vectors [m, n, k], labels [n].

    The mean over slices and views of -mean over positives of log(exp(s / T) / sum over all other views exp(s / T)),
    s the cosine of two views. Each view needs another one of its class.
    """
    with torch.autocast(vectors.device.type, enabled=False):
        unit = F.normalize(vectors, dim=-1)
        similar = unit @ unit.transpose(1, 2) / temperature
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    log_share = similar - similar.masked_fill(itself, -torch.inf).logsumexp(dim=-1, keepdim=True)
    positive = (labels[:, None] == labels) & ~itself
    return -((log_share * positive).sum(dim=-1) / positive.sum(dim=-1)).mean()


def distance_loss(vectors: Tensor, stored: Tensor) -> Tensor:
    """Keep how images lie to each other: mean squared difference of their shares, vectors [..., n, k] each."""
    return (_shares(vectors) - _shares(stored)).square().mean()


def future_excess(logits: Tensor, own: Tensor, future: Tensor, margin: float) -> Tensor:
    """Return by how much the largest future logit comes nearer than ``margin`` to the largest of the own slice: [n].

    logits [n, C]; own: bool [n, C], the slice that each image's label belongs to; future: classes, int64 [f].
    """
    return logits[:, future].max(dim=1).values + margin - logits.masked_fill(~own, -torch.inf).max(dim=1).values


def past_excess(logits: Tensor, past: int, margin: float) -> Tensor:
    """Return the same for probabilities of past and present classes: [n]; only the present ones have a gradient.

    logits [n, C_s] of all seen classes, the first ``past`` of which are past.
    """
    p = logits.softmax(dim=1)
    return p[:, :past].max(dim=1).values.detach() + margin - p[:, past:].max(dim=1).values


def mean_of_positive(values: Tensor) -> Tensor:
    """Return the mean over those of values [n] that are above 0; 0 without any."""
    return values.clamp(min=0).sum() / (values > 0).sum().clamp(min=1)


def _shares(vectors: Tensor) -> Tensor:
    """Inner products [..., n, n], each row divided by the sum of its absolute values."""
    with torch.autocast(vectors.device.type, enabled=False):
        return F.normalize(vectors @ vectors.transpose(-1, -2), p=1, dim=-1)
