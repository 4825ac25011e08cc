"""NNCSL+: what a task's images are taken for while it lasts is kept with some of them, and the head learns from it.

While a task lasts its images have to be told apart among its own few classes only, by a network that sees all of them:
no later guess is as good. At its end the surest of them are kept with their guesses, balanced over classes, and stand
for their classes in later steps beside the few labeled images of the memory.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from nncsl import objectives
from nncsl.batches import Batch, Draws, Moment, Render
from nncsl.config import Config
from nncsl.data.tasks import Task
from nncsl.methods.base import Step
from nncsl.methods.guesses import KeepsGuesses, guess
from nncsl.methods.nncsl import NNCSL
from nncsl.networks import Network
from nncsl.replay import Memory
from nncsl.steps.transfer import constant


@dataclass(frozen=True)
class NNCSLPlusSettings:
    """images: how many are kept with a guess; batch: how many of them a step shows.

    sure: which part of the images that are taken for a class may be kept, the surest ones. agree: whether the head
    also learns from images of the task whose two large views the supports' votes take for the same class.
    """

    images: int = 2000
    batch: int = 32
    sure: float = 0.5
    agree: bool = True


class NNCSLPlus(KeepsGuesses, NNCSL):
    """NNCSL, whose head also learns from images with guessed labels, of earlier tasks and of this one.

    Both kinds of guesses weigh as much as their classes are a part of those seen: together as much as the labels.
    """

    Settings: ClassVar[type] = NNCSLPlusSettings
    together: ClassVar[tuple[str, ...]] = (*NNCSL.together, "kept")
    own: NNCSLPlusSettings

    def __init__(self, network: Network, config: Config, own: Any) -> None:
        super().__init__(network, config, own)
        self.forget_guesses()

    def draw(self, draws: Draws, now: Moment) -> Batch:
        batch = super().draw(draws, now)
        ids, labels = self.keeps(), self.on_host("kept_labels").numpy()
        if not len(ids):
            return batch
        by_class = {int(label): np.flatnonzero(labels == label) for label in np.unique(labels)}
        rows = draws.balanced(now, self.own.batch, "guessed", by_class)
        group = draws.views("support", ids[rows], now, 1, old=np.full(len(rows), True))
        return {**batch, "kept": replace(group, labels=torch.from_numpy(labels[rows]))}

    def head_losses(self, step: Step, features: Tensor, guesses: Tensor | None) -> dict[str, tuple[float, Tensor]]:
        task, sizes = step.task, [len(step.batch[name]) for name in self.together if name in step.batch]
        logits = self.seen_logits(objectives.scale_gradient(features, self.lambda_lin), task)
        large, supports, *kept = logits.split(sizes)
        found = {"lin": (1.0, objectives.lin_loss(supports, step.labels("supports")))}
        old = len(task.old) / len(task.seen)
        if kept:
            found["kept"] = (old, objectives.lin_loss(kept[0], step.labels("kept")))
        if guesses is not None and self.own.agree:
            classes = constant(self.among(task), guesses.device, torch.int64)
            found["agree"] = (1 - old, agreed_loss(large, classes[guesses]))
        return found

    def end(self, task: Task, memory: Memory, render: Render) -> None:
        if not len(task.labeled):  # nobody ever told its classes apart
            return
        ids = np.setdiff1d(task.unlabeled, task.labeled)
        guesses, sure = guess(self.network, ids, task.classes, self.config.views.large.size, render)
        rows = surest(guesses.numpy(), sure.numpy(), self.own.sure)
        self.keep_guesses(ids[rows], guesses.numpy()[rows], task.seen, self.own.images)

    def will_keep(self, remembered: int, met: int) -> tuple[int, int]:
        sure = math.ceil(self.own.sure * met) + self.network.head.out_features  # each class's part is rounded up
        images = min(self.own.images, met, sure)
        return images, self.guesses_bytes(images)


def agreed_loss(logits: Tensor, classes: Tensor) -> Tensor:
    """Return the mean cross-entropy of views with the classes that they are taken for, where an image's two agree.

    logits [2 N, C], unseen classes at minus infinity; classes int64 [2 N]: all images' first views, then the second
    ones. 0 where no two agree.
    """
    first, second = classes.chunk(2)
    agree = (first == second).repeat(2)
    each = F.cross_entropy(logits.float(), classes, reduction="none")
    return (each * agree).sum() / agree.sum().clamp(min=1)


def surest(guesses: np.ndarray, sure: np.ndarray, part: float) -> np.ndarray:
    """Return the rows of the surest ``part`` of each class's guesses, rounded up: int64, in order. Arguments [n]."""
    found = [np.zeros(0, np.int64)]
    for label in np.unique(guesses):
        rows = np.flatnonzero(guesses == label)
        found.append(rows[np.argsort(-sure[rows], kind="stable")[: int(np.ceil(part * len(rows)))]])
    return np.sort(np.concatenate(found))
