"""Searching a bank: nearest neighbors and kNN classification with FAISS, and herding.

An index is built from the bank when first searched (0.02 s for 50,000 rows) and never stored: index files have no
checksums, and loading one from a stranger is not safe.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from .herding import herd

KINDS = ("flat", "compressed")
METRICS = ("cosine", "l2")
_BLOCK = 65_536  # rows decoded at a time while building
_TRAINING_ROWS = 100_000
_FEWEST_FOR_LISTS = 10_000  # below this, looking at all rows is quicker than choosing lists
_GPU_SCRATCH = 64 << 20  # FAISS would otherwise reserve up to 1.5 GB

_first_user: int | None = None


class Neighbors(NamedTuple):
    """Best first. scores: cosine similarity, or squared distance for metric 'l2'."""

    scores: Tensor  # [n, k] float32
    ids: Tensor  # [n, k] int64
    slots: Tensor  # [n, k] int64
    labels: Tensor  # [n, k] int64, -1: none


class Selection(NamedTuple):
    ids: Tensor  # [m] int64
    slots: Tensor  # [m] int64
    labels: Tensor  # [m] int64


def load_faiss() -> Any:
    """The faiss module, in a process where it is safe to use."""
    global _first_user
    if torch.utils.data.get_worker_info() is not None:
        raise RuntimeError("FAISS may not be used in a DataLoader worker: its threads do not survive the fork")
    if _first_user not in (None, os.getpid()):
        raise RuntimeError(
            f"FAISS was used by process {_first_user} before it forked this one ({os.getpid()}), where a search would "
            f"hang; search in the parent, or start this process with the 'spawn' method"
        )
    try:
        import faiss
    except ImportError as error:
        raise ImportError(
            'searching and the pq codec need FAISS: pip install "nncsl[cpu]", or "nncsl[gpu]" for CUDA; '
            "never both, they own the same import name"
        ) from error
    _first_user = os.getpid()
    return faiss


class FeatureIndex:
    """Search over some rows of a bank, made by `bank.index()`.

    kind 'flat' compares with every row (4 * dim bytes each); 'compressed' stores dim bytes per row and, from 10,000
    rows on, looks only at the `probes` most promising of its lists. `device` 'cuda' searches on the GPU (faiss-gpu).
    """

    def __init__(
        self,
        read: Callable[[Tensor, Tensor], Tensor],
        ids: Tensor,
        slots: Tensor,
        labels: Tensor,
        dim: int,
        kind: str = "flat",
        *,
        metric: str = "cosine",
        probes: int = 16,
        device: str = "cpu",
    ):
        if kind not in KINDS:
            raise ValueError(f"kind: expected one of {KINDS}, got {kind!r}")
        if metric not in METRICS:
            raise ValueError(f"metric: expected one of {METRICS}, got {metric!r}")
        if len(ids) == 0:
            raise ValueError("index: expected at least one committed row of that role, got none")
        self.kind, self.metric, self.ids, self.slots, self.labels = kind, metric, ids, slots, labels
        self._read, self._dim, self._probes, self._device = read, dim, probes, device
        self._built: Any = None

    def __len__(self) -> int:
        return len(self.ids)

    def search(self, queries: Tensor, k: int = 1) -> Neighbors:
        """queries [n, dim] -> the k nearest rows of each."""
        if not 1 <= k <= len(self):
            raise ValueError(f"k: expected 1 to {len(self)}, the number of rows, got {k}")
        queries = torch.as_tensor(queries).detach().float().cpu()
        if queries.ndim != 2 or queries.shape[1] != self._dim:
            raise ValueError(f"queries: expected shape [n, {self._dim}], got {list(queries.shape)}")
        if not queries.isfinite().all():
            raise ValueError("queries: expected finite numbers, got NaN or infinity")  # FAISS would answer -1
        faiss = load_faiss()
        if self._built is None:
            self._built = self._build(faiss)
        scores, rows = self._built.search(self._prepared(queries).numpy(), k)
        at = torch.from_numpy(rows)
        # A compressed index may find fewer than k rows in the lists it looks at; FAISS says -1 there.
        found = at >= 0
        ids, slots, labels = (torch.where(found, column[at], -1) for column in (self.ids, self.slots, self.labels))
        return Neighbors(torch.from_numpy(scores), ids, slots, labels)

    def knn_classify(self, queries: Tensor, k: int = 20, temperature: float = 0.1) -> Tensor:
        """Classes [n] int64 by vote of the k nearest rows, each weighted by exp(similarity / temperature)."""
        if (self.labels < 0).any():
            unlabeled = int((self.labels < 0).sum())
            raise ValueError(f"labels: expected all rows labeled, got {unlabeled} without; try index(role='support')")
        if temperature <= 0:
            raise ValueError(f"temperature: expected a positive number, got {temperature}")
        neighbors = self.search(queries, min(k, len(self)))
        similar = neighbors.scores if self.metric == "cosine" else -neighbors.scores
        found = neighbors.labels >= 0
        weights = ((similar - similar[:, :1]) / temperature).exp().where(found, 0)
        votes = torch.zeros(len(similar), int(self.labels.max()) + 1)
        return votes.scatter_add_(1, neighbors.labels.clamp_min(0), weights).argmax(1)

    def herding(self, per_class: int) -> Selection:
        """For each class the rows whose running mean stays closest to the class mean (iCaRL's exemplar choice).

        Ordered by class, then by choice: a prefix of a class is its best smaller selection.
        """
        if per_class < 1:
            raise ValueError(f"per_class: expected at least 1, got {per_class}")
        chosen = []
        for label in self.labels.unique().tolist():
            if label < 0:
                continue
            members = (self.labels == label).nonzero().squeeze(1)
            features = self._prepared(self._read(self.ids[members], self.slots[members]).cpu())
            chosen.append(members[herd(features, per_class)])
        if not chosen:
            raise ValueError("labels: expected labeled rows for herding, got none; write(..., labels=) stores them")
        rows = torch.cat(chosen)
        return Selection(self.ids[rows], self.slots[rows], self.labels[rows])

    def _prepared(self, features: Tensor) -> Tensor:
        return normalize(features, dim=1) if self.metric == "cosine" else features

    def _build(self, faiss: Any) -> Any:
        metric = faiss.METRIC_INNER_PRODUCT if self.metric == "cosine" else faiss.METRIC_L2
        recipe = "Flat"
        if self.kind == "compressed":
            lists = int(4 * len(self) ** 0.5)
            recipe = f"IVF{min(lists, len(self) // 39)},SQ8" if len(self) >= _FEWEST_FOR_LISTS else "SQ8"
        index = faiss.index_factory(self._dim, recipe, metric)
        if self._device != "cpu":
            resources = faiss.StandardGpuResources()
            resources.setTempMemory(_GPU_SCRATCH)
            index = faiss.index_cpu_to_gpu(resources, torch.device(self._device).index or 0, index)
            self._resources = resources  # must live as long as the index
        if not index.is_trained:
            sample = torch.linspace(0, len(self) - 1, min(len(self), _TRAINING_ROWS)).long()
            index.train(self._rows(sample))
        for block in torch.arange(len(self)).split(_BLOCK):
            index.add(self._rows(block))
        if hasattr(index, "nprobe"):
            index.nprobe = self._probes
        return index

    def _rows(self, rows: Tensor) -> Any:
        return self._prepared(self._read(self.ids[rows], self.slots[rows]).cpu()).numpy()
