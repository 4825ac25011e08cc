"""What the network makes of the test set at a task's boundary, kept for the report: the network itself moves on."""

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from nncsl import files
from nncsl.errors import DamagedError
from nncsl.record import archives, checksums

FOLDER = "snapshots"
_MOST = 2000
_SAMPLES = "samples of class "


@dataclass(frozen=True)
class Snapshot:
    """After one task: unit projections fp16 [n, D] and labels [n] of a class-balanced part of the test images, the
    whole test set's confusion counts [C, C] (true class, predicted class), the classes' names, and what the method
    made itself: by class, uint8 [n, H, W, C]."""

    projections: np.ndarray
    labels: np.ndarray
    confusion: np.ndarray
    class_names: tuple[str, ...]
    samples: Mapping[int, np.ndarray] = field(default_factory=dict)


def shown(labels: np.ndarray) -> np.ndarray:
    """Return which test images' projections are kept: a class-balanced part of those with these labels [n]."""
    return balanced(labels, _MOST)


def keep_snapshot(
    folder: Path,
    task: int,
    projections: Tensor,
    predicted: Tensor,
    labels: Tensor,
    names: tuple[str, ...],
    samples: Mapping[int, np.ndarray] | None = None,
) -> None:
    """Write ``snapshots/task-N.npz``, N from 1.

    projections: of the images :func:`shown`; predicted [n] and labels [n]: of all; on the host. samples: as read back.
    """
    confusion = torch.bincount(labels * len(names) + predicted, minlength=len(names) ** 2).view(len(names), -1)
    image = io.BytesIO()
    made: dict[str, Any] = {f"{_SAMPLES}{label}": images for label, images in (samples or {}).items()}
    np.savez(
        image,
        projections=F.normalize(projections, dim=1).half().numpy(),
        labels=labels.numpy()[shown(labels.numpy())],
        confusion=confusion.numpy(),
        class_names=np.array(names),
        **made,
    )
    path, content = _path(folder, task), image.getbuffer()
    listing = checksums.listing(folder, f"{FOLDER}/{path.name}")
    files.write_file(path, lambda file: file.write(content), size=len(content), before_rename=listing)


def read_snapshot(folder: Path, task: int) -> Snapshot | None:
    """The snapshot after task ``task`` (from 0), if one was kept."""
    path = _path(folder, task)
    if not path.exists():
        return None
    checksums.check(folder, f"{FOLDER}/{path.name}", archives.LARGEST_ARRAYS)
    saved = archives.read_arrays(path)
    try:
        names = tuple(str(name) for name in saved["class_names"])
        made = {int(key.removeprefix(_SAMPLES)): saved[key] for key in saved if key.startswith(_SAMPLES)}
        snapshot = Snapshot(saved["projections"], saved["labels"], saved["confusion"], names, made)
        _check(snapshot)
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise DamagedError(f"{path} is damaged ({error}): delete it, the report is then drawn without it") from error
    return snapshot


def _check(snapshot: Snapshot) -> None:
    """Refuse arrays that don't belong together."""
    classes, vectors, labels = len(snapshot.class_names), snapshot.projections, snapshot.labels
    counts = snapshot.confusion
    whole = labels.ndim == 1 and vectors.ndim == 2 and len(vectors) == len(labels) and counts.shape == (classes,) * 2
    if not whole or vectors.dtype.kind != "f" or labels.dtype.kind != "i" or counts.dtype.kind != "i":
        raise ValueError("its arrays have other shapes or types than nncsl writes")
    if (counts < 0).any() or (len(labels) and not 0 <= labels.min() <= labels.max() < classes):
        raise ValueError("it counts classes that are not there")
    for label, images in snapshot.samples.items():
        if not 0 <= label < classes or images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] not in (1, 3):
            raise ValueError("its images are none")


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
    return folder / FOLDER / f"task-{task + 1}.npz"
