"""What each step sees: images, labels and view slots, as a pure function of (seed, task, epoch, step)."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from nncsl.config import Config
from nncsl.data.policy import ViewPolicy
from nncsl.data.rng import permutation, permutations, stream_key, uniforms
from nncsl.data.tasks import Stream, Task
from nncsl.data.views import make_views
from nncsl.replay import Memory

LABELED_VIEWS = 2


@dataclass(frozen=True)
class ViewKeys:
    """Addresses of n views of one kind: ids and slots, int64 [n] each."""

    kind: str
    ids: np.ndarray
    slots: np.ndarray

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Batch:
    """One step. Unlabeled views are view-major: all images' first view, then all second ones, ...

    old: bool [K], which supports belong to earlier tasks; replayed: bool [N], which unlabeled images do.
    """

    large: ViewKeys
    small: ViewKeys
    supports: ViewKeys
    labels: Tensor
    old: np.ndarray
    replayed: np.ndarray

    @property
    def views(self) -> int:
        """How many images the network sees in this step."""
        return len(self.large) + len(self.small) + len(self.supports)

    @property
    def old_supports(self) -> ViewKeys:
        return ViewKeys("support", self.supports.ids[self.old], self.supports.slots[self.old])


@dataclass(frozen=True)
class Pool:
    """The view slots that exist; no sets mean fresh views for ever.

    Labeled images have sets of their own: they are few and every step shows them, so they can and should have more.
    """

    sets: int = 0
    support_sets: int = 0
    replaced: int = 0  # how often all sets were exchanged for new ones

    def slots(self, kind: str, views: int) -> np.ndarray:
        """All slots of a kind that has ``views`` views per step."""
        size = views * (self.support_sets if kind == "support" else self.sets)
        return np.arange(size) + self.replaced * size


class Batches:
    """Draws the batches of one task."""

    def __init__(self, task: Task, memory: Memory, stream: Stream, config: Config) -> None:
        self._task = task
        self._seed = config.seed
        self._policy = config.views
        self._per_class = config.labelled_per_class
        self._labeled_batch = config.labelled_batch
        self._unlabeled = np.concatenate([task.unlabeled, memory.unlabeled])
        self._replayed = np.arange(len(self._unlabeled)) >= len(task.unlabeled)
        self._batch = min(config.unlabelled_batch, len(self._unlabeled))
        self.steps_per_epoch = len(self._unlabeled) // self._batch
        ids = np.concatenate([task.labeled, memory.ids])
        self._old_ids = set(memory.ids.tolist())
        labels = stream.labels(ids)
        self._by_class = {int(label): np.sort(ids[labels == label]) for label in np.unique(labels)}

    def draw(self, epoch: int, step: int, pool: Pool) -> Batch:
        """Unlabeled images by an epoch permutation (drop last); ``per_class`` labeled images of every class."""
        chosen = self._order(epoch)[step * self._batch : (step + 1) * self._batch]
        now = epoch * self.steps_per_epoch + step
        supports, labels, old = self._supports(now, pool)
        unlabeled = self._unlabeled[chosen]
        return Batch(
            large=self._views("large", unlabeled, self._policy.large.count, epoch, pool),
            small=self._views("small", unlabeled, self._policy.small.count, epoch, pool),
            supports=supports,
            labels=torch.from_numpy(labels),
            old=old,
            replayed=self._replayed[chosen],
        )

    def draw_labeled(self, epoch: int, step: int, *, replay: bool) -> Batch:
        """A plain supervised batch: images of the task, and as many of the memory, one fresh view each."""
        now = epoch * self.steps_per_epoch + step
        parts = [self._uniform(self._task.labeled, "stream", now, self._labeled_batch)]
        if replay and self._old_ids:
            parts.append(self._uniform(np.array(sorted(self._old_ids)), "memory", now, len(parts[0])))
        ids = np.concatenate(parts)
        label_of = {int(i): label for label, members in self._by_class.items() for i in members}
        nothing = ViewKeys("large", ids[:0], ids[:0])
        return Batch(
            large=nothing,
            small=nothing,
            supports=ViewKeys("support", ids, np.full(len(ids), now)),
            labels=torch.tensor([label_of[int(i)] for i in ids]),
            old=np.isin(ids, list(self._old_ids)),
            replayed=np.zeros(0, dtype=bool),
        )

    @lru_cache(maxsize=1)  # noqa: B019 - one epoch's order; it dies with the task
    def _order(self, epoch: int) -> np.ndarray:
        return permutation(stream_key(self._seed, "epoch", self._task.index, epoch), len(self._unlabeled))

    def _supports(self, now: int, pool: Pool) -> tuple[ViewKeys, np.ndarray, np.ndarray]:
        """Classes stay balanced: one with fewer than ``per_class`` images shows them again in other views."""
        keys = [stream_key(self._seed, "supports", self._task.index, label, now) for label in self._by_class]
        orders = permutations(keys, [len(members) for members in self._by_class.values()])
        picks = np.arange(self._per_class)
        ids, turns = [], []
        for members, order in zip(self._by_class.values(), orders, strict=True):
            ids.append(members[order[picks % len(members)]])
            turns.append(picks // len(members))
        all_ids, all_turns = np.concatenate(ids), np.concatenate(turns)
        labels = np.repeat(list(self._by_class), self._per_class)
        old = np.isin(all_ids, list(self._old_ids))
        moment = now * self._per_class + all_turns
        fresh = self._slots("support", all_ids, moment, LABELED_VIEWS, Pool())
        # Only what the teacher must know comes from its pool: supports of the current task always are fresh.
        pooled = self._slots("support", all_ids, moment, LABELED_VIEWS, pool)
        slots = np.where(old[:, None], pooled, fresh).T.reshape(-1)
        supports = ViewKeys("support", np.tile(all_ids, LABELED_VIEWS), slots)
        return supports, np.tile(labels, LABELED_VIEWS), np.tile(old, LABELED_VIEWS)

    def _views(self, kind: str, ids: np.ndarray, views: int, epoch: int, pool: Pool) -> ViewKeys:
        slots = self._slots(kind, ids, np.full(len(ids), epoch), views, pool)
        return ViewKeys(kind, np.tile(ids, views), slots.T.reshape(-1))

    def _slots(self, kind: str, ids: np.ndarray, moment: np.ndarray, views: int, pool: Pool) -> np.ndarray:
        """[n, views] different slots per image: the moment's own ones, or a random choice from the pool."""
        have = pool.slots(kind, views)
        if not len(have):
            return moment[:, None] * views + np.arange(views)
        key = stream_key(self._seed, "slots", self._task.index, kind)
        u = uniforms(key, ids, moment, draws=max(views, 1))
        picks = np.zeros((len(ids), views), np.int64)
        for k in range(views):
            pick = (u[:, k] * (len(have) - k)).astype(np.int64)
            for earlier in np.sort(picks[:, :k], axis=1).T:
                pick += pick >= earlier
            picks[:, k] = pick
        return have[picks]

    def _uniform(self, ids: np.ndarray, name: str, now: int, size: int) -> np.ndarray:
        order = permutation(stream_key(self._seed, name, self._task.index, now), len(ids))
        return ids[order[:size]]


def render(keys: ViewKeys, stream: Stream, policy: ViewPolicy, *, seed: int, task: int, device: torch.device) -> Tensor:
    """The pixels of views: float32 [n, C, size, size]."""
    distinct, rows = np.unique(keys.ids, return_inverse=True)
    images = stream.gather(distinct)
    return make_views(
        images.pixels[rows],
        keys.ids,
        keys.slots,
        policy=policy,
        kind=keys.kind,
        seed=seed,
        task=task,
        sizes=None if images.sizes is None else images.sizes[rows],
        device=device,
    )
