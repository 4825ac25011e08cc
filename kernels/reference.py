"""The definition: soft nearest neighbours and the distillation loss in plain, differentiable torch.

Everything else in this package is tested against these functions. They are written to be read:
they build the [N, K] similarities and a [K, C] label matrix, which the other back ends never do.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from .problem import Problem, working_dtype

EPS = 1e-12
"""Vectors shorter than this are divided by it instead of by their length (torch's `normalize`)."""


def snn(problem: Problem) -> Tensor:
    """Return softmax(cos(queries, supports) / temperature) @ smoothed labels, or its logarithm: [N, C]."""
    queries, supports, labels, mask, num_classes, temperature, smoothing, log, _ = problem
    dtype = working_dtype(problem)
    if mask is not None:
        supports, labels = supports[mask], labels[mask]
    weights = (labels if labels.is_floating_point() else F.one_hot(labels.long(), num_classes)).to(dtype)
    if smoothing:
        weights = weights * (1 - smoothing) + smoothing / num_classes
    units = F.normalize(queries.to(dtype), dim=1, eps=EPS), F.normalize(supports.to(dtype), dim=1, eps=EPS)
    logits = units[0] @ units[1].t() / temperature
    if not log:
        return torch.softmax(logits, dim=1) @ weights
    return log_of_mean(torch.log_softmax(logits, dim=1), weights)


def log_of_mean(logits: Tensor, weights: Tensor) -> Tensor:
    """Return log(exp(logits [N, K]) @ weights [K, C]) also where exponentials underflow; -inf for no weight."""
    absent = (weights == 0).all(dim=0)
    # The inner `where` keeps classes of only -inf out of the graph: their gradient would be NaN.
    logs = torch.logsumexp(logits[:, :, None] + torch.where(absent, 0.0, weights.log()), dim=1)
    return torch.where(absent, -torch.inf, logs)


def nnd_loss(student: Problem, teacher: Problem) -> Tensor:
    """Return -sum_c w'_c log w_c of each query with w = snn(student) and w' = snn(teacher): [N].

    A class that the teacher gives no probability (it has no supports) adds nothing, whatever the student says.
    """
    dtype = working_dtype(student, teacher)
    with torch.no_grad():
        target = snn(teacher.to(dtype))
    student = student.to(dtype)
    if student.cold and not student.smoothing:  # probabilities may be too small for their type
        log_predicted = torch.where(target == 0, 0.0, snn(student._replace(log=True)))
    else:  # the inner `where` keeps log(0) out of the graph: its gradient would be 0 * inf
        log_predicted = torch.where(target == 0, 1.0, snn(student)).log()
    return -(target * log_predicted).sum(dim=1)


SMALLEST_TARGET = 1e-4
"""Entries of a sharpened target below this are set to zero."""


def sharpen(p: Tensor, power: float) -> Tensor:
    """Rows p^power, normalized to sum 1."""
    powered = p**power
    return powered / powered.sum(dim=1, keepdim=True)


def targets_of(sharp: Tensor, small_views: int) -> Tensor:
    """What each view shall predict, from the sharpened predictions of all views [(2 + small_views) N, C].

    The two large views are each other's target; the target of a small view is the mean of the large ones. Small
    entries are dropped last: a class of which one large view is sure enough stays in their mean.
    """
    n = sharp.shape[0] // (2 + small_views)
    one, two = sharp[: 2 * n].split(n)
    targets = torch.cat([two, one, *[(one + two) / 2] * small_views])
    return torch.where(targets < SMALLEST_TARGET, 0.0, targets)


def objective(log_p: Tensor, small_views: int, power: float) -> tuple[Tensor, Tensor]:
    """Mean cross-entropy with the (constant) targets, and minus the entropy of the mean sharpened prediction.

    log_p [(2 + small_views) N, C]: logarithms of probabilities, -inf for a class without supports.
    """
    sharp = torch.softmax(power * log_p, dim=1)
    target, mean = targets_of(sharp.detach(), small_views), sharp.mean(dim=0)
    # 0 log 0 = 0: classes without supports take no part.
    log_p, log_mean = torch.where(target == 0, 0.0, log_p), torch.where(mean == 0, 1.0, mean).log()
    return -(target * log_p).sum(dim=1).mean(), (mean * log_mean).sum()
