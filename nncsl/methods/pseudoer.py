"""PseudoER: PAWS guesses the labels of a task's images, and experience replay learns from them."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from nncsl import networks
from nncsl.batches import Batch, Draws, Moment, Render
from nncsl.config import Config
from nncsl.data.rng import stream_key
from nncsl.data.tasks import Task
from nncsl.errors import ConfigError
from nncsl.methods.base import Answer, Losses, Method, Phase, Step
from nncsl.methods.guesses import KeepsGuesses, guess
from nncsl.methods.paws import PAWS
from nncsl.methods.supervised import ER
from nncsl.networks import Network
from nncsl.replay import Memory, Ranking


def task_images(task: Task) -> np.ndarray:
    """Return all images of a task, labeled or not, each once and in order: int64 [n]."""
    return np.union1d(task.unlabeled, task.labeled)


class PseudoER(KeepsGuesses, PAWS, ER):
    """Two networks of one kind: a labeler, which is PAWS, and a learner, which only ever gets the labeler's guesses.

    ``network`` is the one that trains, and ``resting`` the other: they change places at the beginning of each phase, so
    that after a task the learner predicts (and after the first phase, for the record, the labeler). The memory of the
    run, with true labels, is the labeler's; the learner's has the labels that its images got.
    """

    sees_features: ClassVar[bool] = False  # a learner of its own views follows
    measured: ClassVar[Mapping[str, str]] = {"paws": "labeler_accuracy"}
    guessed: ClassVar[tuple[str, ...]] = ("large", "labeled")
    needs_labels: ClassVar[str] = "it learns from labels that are guessed by the task's own ones; give it one a class"
    resting: Network
    labels: Tensor  # of the task's images, int64 [n]: true ones where they are known, guesses elsewhere

    def __init__(self, network: Network, config: Config, own: Any) -> None:
        if config.batchnorm_recalibrate:
            raise ConfigError("batchnorm_recalibrate=True: pseudoer has two networks and does neither; leave it false")
        seed = stream_key(config.seed, "learner") >> 1  # torch takes 63 bits
        learner = networks.build(config.network, len(config.views.mean), network.head.out_features, seed)
        super().__init__(learner, config, own)
        self.resting = network
        self.register_buffer("labels", torch.zeros(0, dtype=torch.int64))
        self.forget_guesses()

    def phases(self, task: Task) -> list[Phase]:
        (labeler,), (learner,) = Method.phases(self, task), ER.phases(self, task)
        return [labeler._replace(name="paws"), learner._replace(name="er")]

    def begin(self, phase: Phase, task: Task) -> list[torch.optim.Optimizer]:
        self.network, self.resting = self.resting, self.network
        self.network.requires_grad_(True)
        self.resting.requires_grad_(False)
        if phase.name == "paws":
            return Method.begin(self, phase, task)
        no_class = -1  # until `prepare` has looked; nothing can be learned from it
        self.labels = torch.full((len(task_images(task)),), no_class, device=self.labels.device)
        return ER.begin(self, phase, task)

    def prepare(self, phase: Phase, task: Task, memory: Memory, render: Render) -> None:
        if phase.name == "paws":
            return
        ids = task_images(task)
        guesses, _ = guess(self.resting, ids, task.classes, self.config.views.large.size, render)
        self.labels.copy_(guesses)
        known = torch.from_numpy(np.searchsorted(ids, task.labeled))
        self.labels[known] = torch.from_numpy(task.labels).to(self.labels.device)

    def mode(self, phase: Phase, task: Task) -> None:
        if phase.name == "paws":
            super().mode(phase, task)
        else:  # frozen statistics belong to the nearest-neighbor recipe
            networks.set_training(self, freeze_batchnorm=False)
        self.resting.eval()

    def draw(self, draws: Draws, now: Moment) -> Batch:
        if now.phase == 0:
            return PAWS.draw(self, draws, now)
        images, size = task_images(draws.task), self.config.labeled_batch
        new = draws.choose(np.arange(len(images)), now, size, "stream")
        old = draws.choose(np.arange(len(self.kept)), now, size, "memory")
        ids = np.concatenate([images[new], self.keeps()[old]])
        labels = torch.cat([self.on_host("labels")[new], self.on_host("kept_labels")[old]])
        group = draws.views(self.own.views, ids, now, 1, old=np.arange(len(ids)) >= len(new))
        return {"labeled": replace(group, labels=labels)}

    def notes(self, batch: Batch, task: Task) -> dict[str, np.ndarray]:
        return super().notes(batch, task) if "large" in batch else {}

    def uncaptured(self) -> str:
        return ""

    def losses(self, step: Step) -> Losses:
        if step.phase.name == "paws":
            return PAWS.losses(self, step)
        return replace(ER.losses(self, step), guesses={"labeled": step.labels("labeled")})

    def rank(self, task: Task, memory: Memory, answers: Callable[[np.ndarray, Answer], Tensor]) -> Ranking:
        def labelers(method: PseudoER, images: Tensor) -> Tensor:
            return networks.unit_projections(method.resting, images)

        return super().rank(task, memory, lambda ids, _: answers(ids, labelers))

    def end(self, task: Task, memory: Memory, render: Render) -> None:
        self.keep_guesses(task_images(task), self.labels.cpu().numpy(), task.seen, self.config.memory)
        self.labels = self.labels[:0].clone()

    def will_keep(self, remembered: int, met: int) -> tuple[int, int]:
        images = min(self.config.memory, met)
        return images, self.guesses_bytes(images)
