"""The protocol: which classes, images and labels each task has, and the one door through which training sees pixels."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from nncsl.data.division import task_sizes
from nncsl.data.label_files import Published
from nncsl.data.labels import LabelBudget
from nncsl.data.rng import permutation, stream_key
from nncsl.data.sources import NO_CLASS, ImageBatch, Images, Source
from nncsl.errors import ConfigError
from nncsl.steps.transfer import constant


class Forbidden(Exception):
    """Training asked for an image or a label that the protocol does not give it: a mistake in the program."""


@dataclass(frozen=True)
class Task:
    """One task: its classes, and the training images (indices into the source) that belong to it.

    labeled, labels: images and their classes, int64 [l]; unlabeled: int64 [u]; old: the classes of earlier tasks;
    num_classes: of the whole data set; steps: of an epoch, and remembered: labeled images in the memory; both are known
    once the task has begun.
    """

    index: int
    classes: tuple[int, ...]
    labeled: np.ndarray
    labels: np.ndarray
    unlabeled: np.ndarray
    old: tuple[int, ...]
    num_classes: int
    steps: int = 0
    remembered: int = 0

    @property
    def seen(self) -> tuple[int, ...]:
        return self.old + self.classes

    def seen_mask(self, outputs: int) -> np.ndarray:
        """Return which of a head's outputs stand for classes seen so far: bool [outputs]."""
        return np.isin(np.arange(outputs), self.seen)

    def seen_on(self, device: torch.device, outputs: int) -> torch.Tensor:
        """Return the same on a device, where it stays."""
        return constant(tuple(self.seen_mask(outputs).tolist()), device, torch.bool)

    def unseen_on(self, device: torch.device, outputs: int) -> torch.Tensor:
        """Return the opposite."""
        return constant(tuple((~self.seen_mask(outputs)).tolist()), device, torch.bool)


def split_tasks(
    source: Source,
    *,
    tasks: int,
    labels: str,
    seed: int,
    sizes: Sequence[int] | None = None,
    class_order: tuple[int, ...] | None = None,
    unlabeled_fraction: float = 1.0,
    after: tuple[Task, ...] = (),
) -> tuple[Task, ...]:
    """Class-incremental tasks; labeled images are unlabeled ones too, if the fraction keeps them.

    sizes: how many classes each task has (default: as even as they go). Images without a class are spread over the
    tasks at random, in proportion to their classes: nobody knows which task one belongs to, and each is met once.
    after: tasks that come before these, of classes with smaller numbers; the source has images of the others alone.
    """
    past = after[-1].seen if after else ()
    order = _class_order(source, class_order, len(past))
    budget = LabelBudget.parse(labels)
    parts = task_sizes(len(order), len(budget.each), sizes, source.name)
    published = Published(source.train_names, source.by_index, source.test_names)
    labeled = budget.choose(source.train_labels, order, seed, source.class_names, parts, published)
    ends = np.cumsum(task_sizes(len(order), tasks, sizes, source.name)).tolist()
    unknown = np.flatnonzero(source.train_labels == NO_CLASS)
    unknown = unknown[permutation(stream_key(seed, "no class"), len(unknown))]
    made = []
    for index, (start, end) in enumerate(zip([0, *ends], ends, strict=False), len(after)):
        classes, old = tuple(order[start:end]), (*past, *order[:start])
        share = unknown[len(unknown) * start // len(order) : len(unknown) * end // len(order)]
        members = np.sort(np.concatenate([np.flatnonzero(np.isin(source.train_labels, classes)), share]))
        kept = max(1, round(unlabeled_fraction * len(members)))
        unlabeled = np.sort(members[permutation(stream_key(seed, "unlabelled", index), len(members))[:kept]])
        ids = np.intersect1d(labeled, members)
        made.append(Task(index, classes, ids, source.train_labels[ids], unlabeled, old, source.num_classes))
    return tuple(made)


def check_memory(memory: int, sizes: Sequence[int]) -> None:
    """A memory that can't hold one image of each class to be replayed is a mistake; 0 is a choice.

    sizes: how many classes each task has.
    """
    replayed = sum(sizes[:-1])
    if 0 < memory < replayed:
        raise ConfigError(
            f"memory={memory}: smaller than one image for each of the {replayed} classes to be replayed; "
            f"use --memory {replayed} or more, or 0 for none"
        )


class Stream(Images):
    """Hands out the pixels that the current task may see, and refuses all others.

    Allowed are the current task's images, the replay memory's and those that a method keeps. Labels are not to be had
    here: a task has those of its labeled images, the memory its own. The test set is not reachable at all.
    """

    def __init__(self, source: Source, tasks: tuple[Task, ...]) -> None:
        self._source = source
        self._tasks = tasks
        self._visible = np.zeros(len(source.train_labels), dtype=bool)
        self._some_unknown = bool((source.train_labels == NO_CLASS).any())
        self._current = -1

    def begin(
        self, task: int, memory: np.ndarray, unlabeled_memory: np.ndarray, others: np.ndarray | None = None
    ) -> Task:
        """Moves on to a task. memory, unlabeled_memory: indices kept from earlier tasks; the rest of them is gone.

        others: those that a method keeps besides, whether they have labels or not.
        """
        others = np.zeros(0, np.int64) if others is None else others
        if task < self._current:
            raise Forbidden(f"task {task} is over: its data is gone (now at task {self._current})")
        now = self._tasks[task]
        # A memory may hold images of the task itself: some methods remember first and learn from that.
        _refuse_stray(memory, [known.labeled for known in self._tasks[: task + 1]], "labeled")
        _refuse_stray(unlabeled_memory, [known.unlabeled for known in self._tasks[: task + 1]], "unlabeled")
        past = [ids for known in self._tasks[: task + 1] for ids in (known.labeled, known.unlabeled)]
        _refuse_stray(others, past, "labeled or unlabeled")
        self._current = task
        self._visible[:] = False
        self._visible[np.concatenate([now.labeled, now.unlabeled, memory, unlabeled_memory, others])] = True
        return now

    def __len__(self) -> int:
        return len(self._source.train)

    @property
    def nbytes(self) -> int:
        return self._source.train.nbytes

    def gather(self, ids: np.ndarray) -> ImageBatch:
        """Pixels of visible images: uint8 [n, H, W, C] and sizes."""
        _refuse(ids, self._visible, "belongs to another task and is not in the memory")
        return self._source.train.gather(ids)

    def monitor(self, ids: np.ndarray) -> np.ndarray:
        """Hidden classes of unlabeled images, int64 [n]: for the training-accuracy curve only, never for a loss.

        NO_CLASS where nobody knows it.
        """
        _refuse(ids, self._visible, "belongs to another task and is not in the memory")
        return self._source.train_labels[ids]

    def share_right(self, guessed: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Return which part of guesses [n] equals the hidden classes [n], where those are known."""
        right = (guessed == hidden).double()
        return right.sum() / (hidden != NO_CLASS).sum().clamp(min=1) if self._some_unknown else right.mean()


def _refuse(ids: np.ndarray, allowed: np.ndarray, reason: str) -> None:
    permitted = allowed[ids] & (np.asarray(ids) >= 0)
    if not permitted.all():
        raise Forbidden(f"training image {np.asarray(ids)[~permitted][0]} {reason}")


def _refuse_stray(kept: np.ndarray, past: list[np.ndarray], kind: str) -> None:
    stray = np.setdiff1d(kept, np.concatenate([np.zeros(0, np.int64), *past]))
    if len(stray):
        raise Forbidden(f"memory holds image {stray[0]}, which is not among the {kind} images of any task so far")


def _class_order(source: Source, class_order: tuple[int, ...] | None, first: int) -> list[int]:
    classes = list(range(first, source.num_classes))
    order = classes if class_order is None else list(class_order)
    if sorted(order) != classes:
        raise ConfigError(f"class_order={order}: expected each of {first}..{source.num_classes - 1} exactly once")
    return order
