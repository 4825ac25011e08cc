"""What the network makes of the test set at a task's boundary, kept for the report: the network itself moves on."""

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nncsl import evaluation, files, networks
from nncsl.data.policy import ViewPolicy
from nncsl.data.sources import Source
from nncsl.methods.base import Method

_MOST = 2000


@dataclass(frozen=True)
class Snapshot:
    """After one task: unit projections fp16 [n, D] and labels [n] of a class-balanced part of the test images, the
    whole test set's confusion counts [C, C] (true class, predicted class), and the classes' names."""

    projections: np.ndarray
    labels: np.ndarray
    confusion: np.ndarray
    class_names: tuple[str, ...]


def keep_snapshot(
    folder: Path,
    task: int,
    method: Method,
    source: Source,
    predicted: Tensor,
    policy: ViewPolicy,
    device: torch.device,
) -> None:
    """Write ``snapshots/task-N.npz``, N from 1. predicted [n]: classes that the test images are taken for."""
    labels, names = torch.from_numpy(source.test_labels), source.class_names
    chosen = balanced(source.test_labels, _MOST)
    projections = evaluation.answers(
        method, source.test, chosen, policy, device, lambda m, x: networks.unit_projections(m.network, x)
    )
    confusion = torch.bincount(labels * len(names) + predicted, minlength=len(names) ** 2).view(len(names), -1)
    image = io.BytesIO()
    np.savez(
        image,
        projections=projections.half().numpy(),
        labels=source.test_labels[chosen],
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
