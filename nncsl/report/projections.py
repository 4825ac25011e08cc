"""Test projections in two dimensions: t-SNE, computed once and kept beside the snapshot."""

import hashlib
import io
from contextlib import suppress
from pathlib import Path

import numpy as np

from nncsl import files
from nncsl.errors import UserError
from nncsl.record import archives
from nncsl.record.snapshots import Snapshot, balanced

_MOST = 800  # points: a few seconds on one core, and more would hide each other
_RECIPE = b"sklearn t-SNE, pca start, perplexity 30, seed 0"


def embedding(folder: Path, task: int, snapshot: Snapshot) -> tuple[np.ndarray, np.ndarray] | None:
    """Points [n, 2] and their labels [n]; None where there is nothing to tell apart."""
    chosen = balanced(snapshot.labels, _MOST)
    vectors, labels = snapshot.projections[chosen].astype(np.float32), snapshot.labels[chosen]
    if len(vectors) < 10 or not np.isfinite(vectors).all() or vectors.std(axis=0).max() < 1e-6:
        return None
    key = hashlib.sha256(_RECIPE + vectors.tobytes()).hexdigest()
    path = folder / "snapshots" / f"task-{task + 1}-tsne.npz"
    points = _cached(path, key, len(vectors))
    if points is None:
        points = _tsne(vectors)
        image = io.BytesIO()
        np.savez(image, key=np.array(key), points=points)
        with suppress(UserError, OSError):  # in somebody else's folder it is computed anew the next time
            files.write_bytes(path, image.getbuffer())
    return points, labels


def _tsne(vectors: np.ndarray) -> np.ndarray:
    from sklearn.manifold import TSNE

    perplexity = min(30.0, (len(vectors) - 1) / 3)
    return TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(vectors).astype(np.float32)


def _cached(path: Path, key: str, count: int) -> np.ndarray | None:
    try:
        saved = archives.read_arrays(path, ("key", "points"))
    except UserError:
        return None
    points = saved["points"]
    return points if str(saved["key"]) == key and points.shape == (count, 2) and points.dtype == np.float32 else None
