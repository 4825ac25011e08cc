"""Real projections to measure codecs on: scikit-learn's digits through a small network, trained here in seconds."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize


def digit_projections(dim: int = 128, steps: int = 200) -> tuple[Tensor, Tensor]:
    """L2-normalized projections [1797, dim] and labels [1797], shuffled.

    Two convolutions and a projector, trained with cross-entropy on random batches: features of the kind that a student
    has in the middle of a run, separable but not collapsed to one point per class.
    """
    pixels, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(pixels, dtype=torch.float32)[order].view(-1, 1, 8, 8) / 16
    classes = torch.tensor(labels)[order]
    torch.manual_seed(0)
    features = nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(64 * 16, 256), nn.ReLU(), nn.Linear(256, dim)),
    )
    head = nn.Linear(dim, 10)
    optimizer = torch.optim.SGD([*features.parameters(), *head.parameters()], lr=0.05, momentum=0.9)
    for _ in range(steps):
        batch = torch.randint(len(images), (64,))
        optimizer.zero_grad()
        cross_entropy(head(features(images[batch])), classes[batch]).backward()
        optimizer.step()
    with torch.no_grad():
        return normalize(features(images), dim=1), classes
