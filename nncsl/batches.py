"""What each step sees: images, labels and view slots, as a pure function of (seed, task, phase, epoch, step)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nncsl import picks
from nncsl.config import Config
from nncsl.data import staged
from nncsl.data.policy import ViewPolicy
from nncsl.data.rng import permutation, permutations, stream_key
from nncsl.data.staged import Sheet
from nncsl.data.tasks import Forbidden, Stream, Task
from nncsl.data.views import make_views, stage_views
from nncsl.replay import Memory

LABELED_VIEWS = 2
_PHASE_MOMENTS = 1 << 24  # more than a phase has steps: fresh views of a later phase are other ones


@dataclass(frozen=True)
class ViewKeys:
    """Addresses of n views of one kind: ids and slots, int64 [n] each."""

    kind: str
    ids: np.ndarray
    slots: np.ndarray

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self, chosen: np.ndarray) -> "ViewKeys":
        """Return those of the chosen rows (bool or int)."""
        return ViewKeys(self.kind, self.ids[chosen], self.slots[chosen])


@dataclass(frozen=True)
class Group:
    """Views that belong together: keys, labels int64 [n] (None: hidden), and bool [n], which are known to be old.

    Several views of the same images are view-major: all images' first view, then all second ones, ...
    """

    keys: ViewKeys
    labels: Tensor | None
    old: np.ndarray

    def __len__(self) -> int:
        return len(self.keys)

    def rows(self, chosen: np.ndarray) -> "Group":
        """Return those of the chosen rows (bool or int)."""
        labels = None if self.labels is None else self.labels[torch.from_numpy(chosen)]
        return Group(self.keys.rows(chosen), labels, self.old[chosen])


Batch = dict[str, Group]
# Pixels of views, by their keys: float32 [n, C, size, size].
Render = Callable[[ViewKeys], Tensor]


@dataclass(frozen=True)
class Pool:
    """The view slots that can be asked about, where answers are stored; views of everything else are always fresh.

    sizes: slots per image, by kind; images: whose, by kind; replaced: how often all slots were exchanged for new ones.
    """

    sizes: Mapping[str, int] = field(default_factory=dict)
    images: Mapping[str, np.ndarray] = field(default_factory=dict)
    replaced: int = 0

    def slots(self, kind: str) -> np.ndarray:
        """Return all slots that an image has in this kind."""
        size = self.sizes.get(kind, 0)
        return np.arange(size) + (0 if kind == "plain" else self.replaced * size)  # a plain image stays what it is


class Moment(NamedTuple):
    """A step's place: phase of the task, epoch of the phase, step of the epoch; number counts steps of the phase."""

    phase: int
    epoch: int
    step: int
    number: int
    pool: Pool = Pool()


class Draws:
    """Chooses images and views for the steps of one task; a method puts its batches together from what this gives."""

    def __init__(self, task: Task, memory: Memory, config: Config) -> None:
        self.task, self.memory = task, memory
        self._seed, self._policy = config.seed, config.views
        self._per_class, self._in_turns = config.labeled_per_class, config.bank_order == "turns"
        self._unlabeled = np.concatenate([task.unlabeled, np.setdiff1d(memory.unlabeled, task.unlabeled)])
        self._old = np.arange(len(self._unlabeled)) >= len(task.unlabeled)
        self._batch = min(config.unlabeled_batch, len(self._unlabeled))
        self.steps_per_epoch = len(self._unlabeled) // self._batch
        ids, labels = np.concatenate([task.labeled, memory.ids]), np.concatenate([task.labels, memory.labels])
        self._labeled, first = np.unique(ids, return_index=True)
        self._labels = labels[first]
        self._by_class = {int(label): self._labeled[self._labels == label] for label in np.unique(labels)}
        self._showings = picks.Showings(self._labeled, lambda phase, number: self._supports(phase, number)[0])

    def unlabeled(self, now: Moment) -> tuple[np.ndarray, np.ndarray]:
        """Return the step's images, in a new order for each pass (drop last), and bool [n], which are remembered."""
        turn, place = divmod(now.number, self.steps_per_epoch)
        chosen = self._order(now.phase, turn)[place * self._batch : (place + 1) * self._batch]
        return self._unlabeled[chosen], self._old[chosen]

    def unlabeled_views(self, now: Moment) -> Batch:
        """Return the preset's large and small views of the step's unlabeled images."""
        ids, old = self.unlabeled(now)
        moments = np.full(len(ids), now.number // self.steps_per_epoch)  # an image comes once in a pass
        kinds = [kind for kind in ("large", "small") if views_per_step(self._policy, kind)]
        return {kind: self.views(kind, ids, now, moments=moments, old=old) for kind in kinds}

    def supports(self, now: Moment) -> Group:
        """Return ``labeled_per_class`` images of every class seen, in two views each: old ones, then the task's.

        Classes stay balanced: one with fewer images shows them again in other views.
        """
        ids, rounds = self._supports(now.phase, now.number)
        showings = None
        if self._in_turns and len(now.pool.slots("support")):
            showings = self._showings.before(now.phase, now.number, ids) + rounds
        moments = now.number * self._per_class + rounds
        found = self.labeled_views("support", ids, now, moments=moments, showings=showings)
        return found.rows(np.argsort(~found.old, kind="stable"))  # each kind is then a slice of the rows

    def labeled(self, now: Moment, size: int) -> np.ndarray:
        """Return ``size`` labeled images of the task, drawn without replacement; fewer where there are fewer."""
        return self.choose(self.task.labeled, now, size, "stream")

    def remembered(self, now: Moment, size: int) -> np.ndarray:
        """Return ``size`` images of the memory, drawn likewise."""
        return self.choose(np.sort(self.memory.ids), now, size, "memory")

    def merged(self, now: Moment, size: int) -> np.ndarray:
        """Return ``size`` of the labeled images of task and memory as one set, drawn likewise."""
        return self.choose(self._labeled, now, size, "merged")

    def balanced(
        self, now: Moment, size: int, name: str, by_class: Mapping[int, np.ndarray] | None = None
    ) -> np.ndarray:
        """Return ``size`` images, classes taking turns: one with few shows them again.

        by_class: the images of each class; default: the labeled ones of task and memory.
        """
        by_class = self._by_class if by_class is None else by_class
        keys = [self._key(name, now.phase, label, now.number) for label in by_class]
        orders = permutations(keys, [len(members) for members in by_class.values()])
        shuffled = [ids[order] for ids, order in zip(by_class.values(), orders, strict=True)]
        classes = self.choose(np.arange(len(shuffled)), now, len(shuffled), name)
        turns, places = np.divmod(np.arange(size), len(classes))
        return np.array([shuffled[c][turn % len(shuffled[c])] for turn, c in zip(turns, classes[places], strict=True)])

    def choose(self, ids: np.ndarray, now: Moment, size: int, name: str) -> np.ndarray:
        """Return ``size`` of these images, drawn likewise; ``name`` tells the draws of a step apart."""
        return ids[permutation(self._key(name, now.phase, now.number), len(ids))[:size]]

    def in_turn(self, ids: np.ndarray, now: Moment, size: int, name: str) -> np.ndarray:
        """Return up to ``size`` of these images: all of them in a new order, in nearly equal parts, then again."""
        parts = -(-len(ids) // size)
        turn, place = divmod(now.number, parts)
        order = permutation(self._key(f"{name} in turn", now.phase, turn), len(ids))
        return ids[np.array_split(order, parts)[place]]

    def labeled_views(
        self,
        kind: str,
        ids: np.ndarray,
        now: Moment,
        count: int | None = None,
        moments: np.ndarray | None = None,
        showings: np.ndarray | None = None,
    ) -> Group:
        """Return views of labeled images with their labels."""
        stray = np.setdiff1d(ids, self._labeled)
        if len(stray):
            raise Forbidden(f"training image {stray[0]} has no label in this task")
        labels = self._labels[np.searchsorted(self._labeled, ids)]
        group = self.views(kind, ids, now, count, moments, np.isin(labels, self.task.old), showings)
        return replace(group, labels=torch.from_numpy(np.tile(labels, len(group) // max(1, len(ids)))))

    def views(
        self,
        kind: str,
        ids: np.ndarray,
        now: Moment,
        count: int | None = None,
        moments: np.ndarray | None = None,
        old: np.ndarray | None = None,
        showings: np.ndarray | None = None,
    ) -> Group:
        """Return ``count`` views of each image (default: as many as a step has of that kind), labels hidden.

        moments: int64 [n], what fresh views depend on besides the image (default: the number of the step).
        showings: int64 [n], how often each image was shown before (default: its moment). Stored views that take turns
        (bank_order) go by it. Supports are counted, so each view of an image is shown once before any comes back in
        the next turn. Unlabeled images go by the pass: likewise, but for passes that leave an image out. Other kinds
        go by the step: within a turn no view comes back, and all are shown equally often in the long run.
        """
        count = views_per_step(self._policy, kind) if count is None else count
        moments = np.full(len(ids), now.number) if moments is None else moments
        slots = self._slots(kind, ids, now, moments, count, moments if showings is None else showings).T.reshape(-1)
        old = np.zeros(len(ids), dtype=bool) if old is None else old
        return Group(ViewKeys(kind, np.tile(ids, count), slots), None, np.tile(old, count))

    @lru_cache(maxsize=1)  # noqa: B019 - one pass's order; it dies with the task
    def _order(self, phase: int, turn: int) -> np.ndarray:
        return permutation(self._key("epoch", phase, turn), len(self._unlabeled))

    @lru_cache(maxsize=2)  # noqa: B019 - the step's and, for counting, the one before it
    def _supports(self, phase: int, number: int) -> tuple[np.ndarray, np.ndarray]:
        """A step's images, class by class, and how often each stands before itself in it: int64 [n] each."""
        keys = [self._key("supports", phase, label, number) for label in self._by_class]
        orders = permutations(keys, [len(members) for members in self._by_class.values()])
        places = np.arange(self._per_class)
        ids, rounds = [], []
        for members, order in zip(self._by_class.values(), orders, strict=True):
            ids.append(members[order[places % len(members)]])
            rounds.append(places // len(members))
        return np.concatenate(ids), np.concatenate(rounds)

    def _slots(
        self, kind: str, ids: np.ndarray, now: Moment, moments: np.ndarray, count: int, showings: np.ndarray
    ) -> np.ndarray:
        """[n, count] different slots per image: the moment's own ones, or some of the pool."""
        if kind == "plain":
            return np.zeros((len(ids), count), np.int64)
        fresh = (moments + now.phase * _PHASE_MOMENTS)[:, None] * count + np.arange(count)
        have = now.pool.slots(kind)
        if not len(have):
            return fresh
        if count > len(have):
            raise ValueError(f"{count} different views of kind {kind!r}: the pool has {len(have)} of an image")
        pick = picks.in_turns if self._in_turns else picks.at_random
        chosen = pick(self._key("slots", now.phase, kind), ids, showings, len(have), count)
        return np.where(np.isin(ids, now.pool.images[kind])[:, None], have[chosen], fresh)

    def _key(self, name: str, phase: int, *parts: int | str) -> int:
        """The first phase has no name in the key: most methods have one phase, and recorded runs keep their draws."""
        later = ("phase", phase) if phase else ()
        return stream_key(self._seed, name, self.task.index, *parts, *later)


def views_per_step(policy: ViewPolicy, kind: str) -> int:
    """Return how many views of an image a step has, by the policy for its own kinds, else one."""
    return {"large": policy.large.count, "small": policy.small.count, "support": LABELED_VIEWS}.get(kind, 1)


def plain_keys(ids: np.ndarray) -> ViewKeys:
    """Return the keys of images as evaluation sees them."""
    return ViewKeys("plain", ids, np.zeros(len(ids), np.int64))


class Renderer:
    """From keys to pixels, for a task: at once, or in two halves, the host's and the device's."""

    def __init__(self, stream: Stream, policy: ViewPolicy, *, seed: int, task: int, device: torch.device) -> None:
        self._stream, self._policy, self._device = stream, policy, device
        self._options: dict[str, Any] = {"policy": policy, "seed": seed, "task": task, "device": device}

    def __call__(self, keys: ViewKeys) -> Tensor:
        return make_views(**self._images(keys), **self._options)

    def stage(self, keys: ViewKeys) -> Sheet:
        """Return everything about the views that the host can prepare, as arrays."""
        return stage_views(**self._images(keys), **self._options)

    def develop(self, sheet: Sheet) -> Tensor:
        """Return the views of a sheet whose arrays have become tensors of the device."""
        return staged.render(sheet, self._policy, self._device)

    def _images(self, keys: ViewKeys) -> dict[str, Any]:
        distinct, rows = np.unique(keys.ids, return_inverse=True)
        images = self._stream.gather(distinct)
        sizes = None if images.sizes is None else images.sizes[rows]
        return {"images": images.pixels[rows], "sizes": sizes, "ids": keys.ids, "slots": keys.slots, "kind": keys.kind}


def stage(render: Render, keys: ViewKeys) -> Any:
    """Return the host's half of a rendering; of a renderer that has no halves, the keys."""
    return render.stage(keys) if isinstance(render, Renderer) else keys


def develop(render: Render, prepared: Any) -> Tensor:
    """Return the pixels of what :func:`stage` returned, once its arrays are tensors of the device."""
    return (
        render.develop(prepared) if isinstance(render, Renderer) and isinstance(prepared, Sheet) else render(prepared)
    )
