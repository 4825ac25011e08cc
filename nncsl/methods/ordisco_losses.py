"""What ORDisCo's players minimize. Scores are the discriminator's, logits the classifier's."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def hinge_loss(real: Tensor, made: Tensor, guessed: Tensor, probabilities: Tensor, share: float) -> Tensor:
    """Return the discriminator's loss: labeled images above 1, generated ones and unlabeled ones below -1.

    real [n], made [m]: scores in the images' own classes; guessed [u, C]: in all classes, weighted by the classifier's
    probabilities [u, C]; share: the generated images' weight among those that are to be low.
    """
    doubted = (probabilities * F.relu(1 + guessed)).sum(dim=1).mean()
    return F.relu(1 - real).mean() + share * F.relu(1 + made).mean() + (1 - share) * doubted


def generator_loss(discriminator: nn.Module, made: Tensor, classes: Tensor) -> Tensor:
    """Return how little images [n, ...] are believed to be of their classes [n]; the judge itself gets no gradient."""
    discriminator.requires_grad_(False)
    scores = discriminator(made)
    discriminator.requires_grad_(True)
    return -chosen(scores, classes).mean()


def consistency_loss(logits: Tensor, targets: Tensor, classes: int) -> Tensor:
    """Return the mean squared difference of probabilities over images and seen classes.

    logits, targets [n, C]: unseen classes at minus infinity; classes: how many are seen.
    """
    difference = logits.softmax(dim=1) - targets.softmax(dim=1)
    return difference.square().sum() / (len(logits) * classes)


def drift(weights: Tensor, anchor: Tensor, importance: Tensor) -> Tensor:
    """Return how far weights [p] are from where they were: the squares' sum, each weighted by its importance."""
    return (importance * (weights - anchor).square()).sum()


def importance(discriminator: nn.Module, images: Tensor, classes: Tensor) -> Tensor:
    """Return the mean over images [n, ...] of the squared gradients of their scores in classes [n]: [p], of mean 1.

    Squared image by image, then averaged: the square of a mean gradient would be another, much smaller thing.
    """
    weights = list(discriminator.parameters())
    total = torch.zeros_like(flat(weights), requires_grad=False)
    for image, label in zip(images, classes, strict=True):
        with torch.enable_grad():
            score = discriminator(image[None])[0, label]
        total += flat(torch.autograd.grad(score, weights)).square()
    return total / total.mean()


def ramp(now: float, start: float, end: float) -> float:
    """Return exp(-5 (1 - x)^2) for x rising from 0 to 1 between start and end; 0 before, 1 after."""
    if now < start:
        return 0.0
    return math.exp(-5 * (1 - (now - start) / (end - start)) ** 2) if now < end else 1.0


def chosen(scores: Tensor, classes: Tensor) -> Tensor:
    """Return each row's score in its class: [n, C] and [n] to [n]."""
    return scores.gather(1, classes[:, None])[:, 0]


def flat(tensors: Iterable[Tensor]) -> Tensor:
    """Return the values of all tensors as one vector."""
    return torch.cat([tensor.flatten() for tensor in tensors])
