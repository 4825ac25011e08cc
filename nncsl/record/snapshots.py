"""What the network makes of the test set at a task's boundary, kept for the report: the network itself moves on."""

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from nncsl import files

_MOST = 2000


@dataclass(frozen=True)
class Snapshot:
    """After one task: unit projections fp16 [n, D] and labels [n] of a class-balanced part of the test images, the
    whole test set's confusion counts [C, C] (true class, predicted class), and the classes' names."""

    projections: np.ndarray
    labels: np.ndarray
    confusion: np.ndarray
    class_names: tuple[str, ...]


def shown(labels: np.ndarray) -> np.ndarray:
    """Return which test images' projections are kept: a class-balanced part of those with these labels [n]."""
    return balanced(labels, _MOST)


def keep_snapshot(
    folder: Path, task: int, projections: Tensor, predicted: Tensor, labels: Tensor, names: tuple[str, ...]
) -> None:
    """Write ``snapshots/task-N.npz``, N from 1.

    projections: of the images :func:`shown`; predicted [n] and labels [n]: of all; on the host.
    """
    confusion = torch.bincount(labels * len(names) + predicted, minlength=len(names) ** 2).view(len(names), -1)
    image = io.BytesIO()
    np.savez(
        image,
        projections=F.normalize(projections, dim=1).half().numpy(),
        labels=labels.numpy()[shown(labels.numpy())],
        confusion=confusion.numpy(),
        class_names=np.array(names),
    )
    files.write_bytes(_path(folder, task), image.getbuffer())


def read_snapshot(folder: Path, task: int) -> Snapshot | None:
    """The snapshot after task ``task`` (from 0), if one was kept."""
    path = _path(folder, task)
    if not path.exists():
        return None
    with np.load(path, allow_pickle=False) as saved:
        names = tuple(str(name) for name in saved["class_names"])
        return Snapshot(saved["projections"], saved["labels"], saved["confusion"], names)


def balanced(labels: np.ndarray, most: int) -> np.ndarray:
    """Up to ``most`` positions in ``labels`` [n], equally many of each class, evenly spread: sorted int64."""
    classes = np.unique(labels)
    share = max(1, most // max(1, len(classes)))
    chosen = [np.flatnonzero(labels == c) for c in classes]
    spread = [
        members[np.linspace(0, len(members) - 1, min(share, len(members))).round().astype(int)] for members in chosen
    ]
    return np.sort(np.concatenate(spread))[:most]


def _path(folder: Path, task: int) -> Path:
    return folder / "snapshots" / f"task-{task + 1}.npz"
