"""MixMatch and metric learning: mixed images, guessed targets, and margins between distances. Pure functions.

Losses are computed in fp32 or better, whatever the network computes in.
"""

import torch
from torch import Tensor

from nncsl.steps.transfer import send


def mixup(images: Tensor, alpha: float, generator: torch.Generator) -> Tensor:
    """Mix every image with one of a shuffle of all [n, ...]: l x + (1 - l) x', l >= 1/2, so that each stays itself."""
    partners = images[send(torch.randperm(len(images), generator=generator), images.device)]
    weights = send(mixing_weights(len(images), alpha, generator).to(images.dtype), images.device)
    return partners.lerp(images, weights.view(-1, *[1] * (images.ndim - 1)))


def mixing_weights(count: int, alpha: float, generator: torch.Generator) -> Tensor:
    """Draw l ~ Beta(alpha, alpha) and return max(l, 1 - l): float64 [count]."""
    # Two gamma variables make a beta variable; torch.distributions would draw them from the global generator.
    one, other = torch._standard_gamma(torch.full((2, count), alpha, dtype=torch.float64), generator=generator)
    share = one / (one + other)
    return torch.maximum(share, 1 - share)


def class_scores(logits: Tensor, *, softmax: bool) -> Tensor:
    """Return probabilities [n, C], or the logits as they are; unseen classes, at minus infinity in logits, have 0."""
    logits = _at_least_single(logits)
    return logits.softmax(dim=1) if softmax else logits.masked_fill(logits.isneginf(), 0.0)


def sharpened_targets(scores: Tensor, views: int, *, own_views: bool) -> Tensor:
    """Return the targets [views * n, C] of all views (view-major) from the mean scores of some: squared, with sum 1.

    own_views: the mean is over the views of an image, all of which get it. Otherwise as in the public code: rows stand
    image by image there, and the mean is over rows that lie n apart. So it is over views of mostly different images,
    and each of these views gets it.
    """
    by_view = scores.unflatten(0, (views, -1))
    if own_views:
        means = by_view.mean(dim=0).expand_as(by_view)
    else:
        apart = by_view.transpose(0, 1).reshape_as(by_view)
        means = apart.mean(dim=0).expand_as(by_view).reshape_as(by_view.transpose(0, 1)).transpose(0, 1)
    squares = means.square()
    sharp = squares / squares.sum(dim=2, keepdim=True).clamp_min(torch.finfo(squares.dtype).tiny)
    return sharp.flatten(0, 1)


def unlabeled_loss(scores: Tensor, targets: Tensor) -> Tensor:
    """Return L_U: mean squared error over views and classes, [n, C] each, and once more divided by the classes."""
    return (_at_least_single(scores) - targets).square().mean() / targets.shape[1]


def margin_loss(embeddings: Tensor, labels: Tensor, hardest: int, margin: float, *, attract: bool = True) -> Tensor:
    """Return the mean over anchors and j of max(0, j-th largest distance within - j-th smallest to others + margin).

    embeddings [n, F], labels [n], squared Euclidean distances. An anchor's distances within its class are at least 0,
    that to itself; without ``attract`` they all count as 0. j runs to ``hardest``; where an anchor has fewer others, or
    none, what is missing is infinitely far and adds nothing.
    """
    rows = _at_least_single(embeddings)
    distances = (rows[:, None] - rows[None]).square().sum(dim=2)  # as differences: products would lose small ones
    same = labels[:, None] == labels[None]
    count = min(hardest, len(rows))
    furthest = torch.where(same & attract, distances, 0.0).topk(count, dim=1).values
    nearest = torch.where(same, torch.inf, distances).topk(count, dim=1, largest=False).values
    return (furthest - nearest + margin).clamp_min(0).mean()


def contrast_loss(new: Tensor, old: Tensor, hardest: int, margin: float) -> Tensor:
    """Return the mean of max(0, margin - d) over images of both sides, [n, F] and [m, F], and their nearest across."""
    sides = torch.cat([torch.zeros(len(new), device=new.device), torch.ones(len(old), device=new.device)])
    return margin_loss(torch.cat([new, old]), sides, hardest, margin, attract=False)


def votes(neighbors: Tensor, num_classes: int) -> Tensor:
    """Return scores [n, C] from the classes of the k nearest, nearest first [n, k]: a vote each.

    Of classes with equally many votes the one with the nearer nearest neighbor is higher, by a part of a vote.
    """
    each = torch.nn.functional.one_hot(neighbors, num_classes)
    first = each.argmax(dim=1)  # of several maxima the first
    return each.sum(dim=1) - first / (neighbors.shape[1] + 1)


def _at_least_single(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
