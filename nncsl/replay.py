"""The replay memory: class-balanced labeled images of what is still there, chosen at random or by herding."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor
from torch.nn import functional as F

from nncsl.config import Config
from nncsl.data.rng import permutation, stream_key, uniforms
from nncsl.data.tasks import Task
from nncsl.featurebank import herd

# Ranks a class's candidates: (class, ids [n]) -> the same ids, best first.
Ranking = Callable[[int, np.ndarray], np.ndarray]


def _empty() -> np.ndarray:
    return np.zeros(0, np.int64)


@dataclass(frozen=True)
class Memory:
    """ids and labels of remembered labeled images, int64 [m] each, and ids of remembered unlabeled ones.

    Labeled images stand class by class, the preferred ones of a class first: where it has to shrink, the last ones go.
    """

    ids: np.ndarray = field(default_factory=_empty)
    labels: np.ndarray = field(default_factory=_empty)
    unlabeled: np.ndarray = field(default_factory=_empty)


def after_task(memory: Memory, task: Task, config: Config, rank: Ranking, *, everything: bool) -> Memory:
    """The memory when a task's images have been put into it; everything: all labeled ones stay, whatever its size."""
    size = len(memory.ids) + len(task.labeled) if everything else config.memory
    memory = update(memory, task.labeled, task.labels, sorted(task.seen), size, rank)
    return update_unlabeled(memory, task.unlabeled, task.index + 1, config.unlabeled_memory, config.seed)


def update(
    memory: Memory, ids: np.ndarray, labels: np.ndarray, seen: Sequence[int], size: int, rank: Ranking
) -> Memory:
    """The memory after a task: floor(size / seen) images of each class, left-over slots spread over the classes.

    ids, labels: the task's labeled images; old classes can only shrink, to a subset of what the memory held.
    """
    all_ids = np.concatenate([memory.ids, ids])
    all_labels = np.concatenate([memory.labels, labels])
    candidates = {label: all_ids[all_labels == label] for label in seen}
    shares = balanced_shares([len(candidates[label]) for label in seen], size)
    kept = [rank(label, candidates[label])[:share] for label, share in zip(seen, shares, strict=True)]
    new_labels = [np.full(len(ids), label) for label, ids in zip(seen, kept, strict=True)]
    return Memory(np.concatenate([_empty(), *kept]), np.concatenate([_empty(), *new_labels]), memory.unlabeled)


def update_unlabeled(memory: Memory, ids: np.ndarray, tasks_seen: int, size: int, seed: int) -> Memory:
    """The same for unlabeled images, balanced over tasks as far as that is known: each keeps size / tasks_seen."""
    if size == 0:
        return memory
    new = _random(ids, seed, "unlabelled-memory", tasks_seen)[: size // tasks_seen]
    kept = _random(memory.unlabeled, seed, "unlabelled-memory-old", tasks_seen)[: size - len(new)]
    return Memory(memory.ids, memory.labels, np.sort(np.concatenate([kept, new])))


def random_ranking(seed: int) -> Ranking:
    """A random order per class that stays the same from task to task, so that a class only ever loses images."""

    def rank(label: int, ids: np.ndarray) -> np.ndarray:
        keys = uniforms(stream_key(seed, "memory", label), ids, draws=2)
        return ids[np.lexsort((keys[:, 1], keys[:, 0]))]

    return rank


def herded_ranking(features: Tensor, ids: np.ndarray) -> Ranking:
    """Prefer images that together stand for their class: features [n, D] of a task's images ``ids`` [n], in any order.

    A class that the memory knows from earlier tasks keeps its order: most of its images are gone, and their mean too.
    """
    row = {int(image): place for place, image in enumerate(ids)}

    def rank(label: int, candidates: np.ndarray) -> np.ndarray:
        if not all(int(image) in row for image in candidates):
            return candidates
        candidates = np.sort(candidates)
        chosen = F.normalize(features[[row[int(image)] for image in candidates]], dim=1)
        return candidates[herd(chosen, len(candidates)).numpy()]

    return rank


def balanced_shares(available: Sequence[int], size: int) -> list[int]:
    """How many images each class gets: equal shares, what one class can't fill goes to the others, in class order."""
    shares = [0] * len(available)
    left = min(size, sum(available))
    while left:
        open_classes = [c for c, count in enumerate(available) if shares[c] < count]
        each = max(1, left // len(open_classes))
        for c in open_classes:
            given = min(each, available[c] - shares[c], left)
            shares[c] += given
            left -= given
    return shares


def _random(ids: np.ndarray, *key: int | str) -> np.ndarray:
    return ids[permutation(stream_key(*key), len(ids))]
