"""CCIC: MixMatch on stream and memory, metric learning, and prediction by the nearest images of the memory."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from nncsl import kernels, networks, objectives
from nncsl.accounting import row_bytes
from nncsl.batches import Batch, Draws, Moment, Render, plain_keys
from nncsl.config import Config
from nncsl.data.tasks import Task
from nncsl.errors import ConfigError
from nncsl.methods import mixmatch, schedules
from nncsl.methods.base import Losses, Method, Phase, Step
from nncsl.networks import Network
from nncsl.passes import inference_batch
from nncsl.replay import Memory


@dataclass(frozen=True)
class CCICSettings:
    """Adam at a constant rate, sizes, weights of the losses, and where the public code departs from its description.

    unlabeled_batch: images a step, in ``views`` views each; mixup: the parameter of its Beta distribution;
    contrast_until: the part of a task's steps in which new images are pushed away from the memory.
    The last four are off in the public code. The first three of them are off here too: in short trials of that code it
    did worse with them, while a short run of this one was as good with them as without.
    softmax_targets: guesses average probabilities, not logits. own_views: they average the views of one image, not of
    several. softmax_unlabeled: probabilities, not logits, shall equal the guesses. stream_every_step: the task's labels
    count in every step, not only in those whose unlabeled images happen to hold a labeled one.
    """

    lr: float = 1e-4
    unlabeled_batch: int = 32
    views: int = 3
    neighbors: int = 2
    memory_weight: float = 0.7
    unlabeled_weight: float = 0.75
    triplet_weight: float = 1.0
    contrast_weight: float = 0.5
    contrast_until: float = 0.9
    margin: float = 1.0
    mixup: float = 0.75
    softmax_targets: bool = False
    own_views: bool = False
    softmax_unlabeled: bool = False
    stream_every_step: bool = True


class CCIC(Method):
    """Continual semi-supervised learning with MixMatch, by default in the form of the public code (see the settings).

    The head learns from labels of task and memory and from its own guesses, the features also from a triplet loss, and
    from a second one that pushes unlabeled images of the task away from the memory. The features of the memory predict.
    """

    Settings: ClassVar[type] = CCICSettings
    decides_by: ClassVar[str | None] = "the votes of the nearest remembered images"
    own: CCICSettings
    features: Tensor  # [m, F], of unit length: the memory as the network sees it when a task ends
    labels: Tensor  # [m]

    def __init__(self, network: Network, config: Config, own: CCICSettings) -> None:
        super().__init__(network, config, own)
        if not config.memory:
            raise ConfigError("memory=0: ccic predicts by its memory's nearest images; use --memory with one per class")
        self.register_buffer("features", torch.zeros(0, network.head.in_features))
        self.register_buffer("labels", torch.zeros(0, dtype=torch.int64))

    def phases(self, task: Task) -> list[Phase]:
        return [Phase("train", self.config.epochs, task.steps, schedules.constant())]

    def begin(self, phase: Phase, task: Task) -> list[torch.optim.Optimizer]:
        return [torch.optim.Adam(self.network.parameters(), lr=self.own.lr)]

    def draw(self, draws: Draws, now: Moment) -> Batch:
        """Return labeled images once for their labels and once for their distances, unlabeled ones, old against new."""
        size = self.config.labeled_batch
        ids = np.concatenate([draws.labeled(now, size), draws.remembered(now, size)])
        labeled = draws.labeled_views("weak", ids, now, 1)
        images = draws.choose(draws.task.unlabeled, now, self.own.unlabeled_batch, "ccic")
        # The same views twice: what is drawn is what the memory of a step is planned for, and both have their pass.
        batch = {"labeled": labeled, "unlabeled": draws.views("weak", images, now, self.own.views), "metric": labeled}
        steps = self.config.epochs * draws.steps_per_epoch
        if len(draws.memory.ids) and now.number < self.own.contrast_until * steps:
            new = draws.choose(draws.task.unlabeled, now, size, "ccic new")
            old = draws.choose(np.sort(draws.memory.ids), now, size, "ccic old")
            others = np.full(size, now.number + steps)  # other views than those above
            batch["new"] = draws.views("weak", new, now, 1, others[: len(new)])
            batch["old"] = draws.views("weak", old, now, 1, others[: len(old)])
        return batch

    def notes(self, batch: Batch, task: Task) -> dict[str, np.ndarray]:
        old = batch["labeled"].old
        return {"new": np.flatnonzero(~old), "old": np.flatnonzero(old)}

    def uncaptured(self) -> str:
        return "ccic draws its mixed images within a step"

    def losses(self, step: Step) -> Losses:
        own, labels = self.own, step.labels("labeled")
        targets = self._targets(step)
        pixels = torch.cat([step.pixels["labeled"], step.pixels["unlabeled"]])
        mixed = mixmatch.mixup(pixels, own.mixup, step.generator("mixup"))
        labeled, unlabeled = mixed.split([len(labels), len(targets)])

        logits = self.seen_logits(step.forward(labeled).features, step.task)
        parts = {}
        if own.stream_every_step or np.isin(step.batch["unlabeled"].keys.ids, step.task.labeled).any():
            new = step.notes["new"]
            if len(new):  # a task may have no labels
                parts["stream"] = objectives.lin_loss(logits[new], labels[new])
        if len(step.notes["old"]):
            old = step.notes["old"]
            parts["memory"] = objectives.lin_loss(logits[old], labels[old])
        guessing = self.seen_logits(step.forward(unlabeled).features, step.task)
        scores = mixmatch.class_scores(guessing, softmax=own.softmax_unlabeled)
        parts["unlabeled"] = mixmatch.unlabeled_loss(scores, targets)
        parts |= self._distances(step, labels)

        weights = {"memory": own.memory_weight, "unlabeled": own.unlabeled_weight}
        weights |= {"triplet": own.triplet_weight, "contrast": own.contrast_weight}
        total = torch.stack([weights.get(name, 1.0) * part for name, part in parts.items()]).sum()
        return Losses(total, parts, {"unlabeled": targets.argmax(dim=1)})

    def _targets(self, step: Step) -> Tensor:
        """What the unlabeled views are taken for [views * n, C], in eval mode and without gradient."""
        with networks.evaluating(self.network):
            logits = self.seen_logits(step.forward(step.pixels["unlabeled"]).features, step.task)
            scores = mixmatch.class_scores(logits, softmax=self.own.softmax_targets)
            return mixmatch.sharpened_targets(scores, self.own.views, own_views=self.own.own_views)

    def _distances(self, step: Step, labels: Tensor) -> dict[str, Tensor]:
        """The triplet loss of labeled images, and while old and new are pushed apart, the loss that does so."""
        hardest, margin = max(1, self.config.labeled_batch // 10), self.own.margin
        pixels, parts = step.pixels["metric"], {}
        if "old" in step.batch:
            pixels = mixmatch.mixup(pixels, 1.0, step.generator("triplet"))
        parts["triplet"] = mixmatch.margin_loss(step.forward(pixels).features, labels, hardest, margin)
        if "old" in step.batch:
            new, old = step.see("new", "old")
            parts["contrast"] = mixmatch.contrast_loss(new.features, old.features, hardest, margin)
        return parts

    def end(self, task: Task, memory: Memory, render: Render) -> None:
        size = inference_batch(self.network, self.config.views.large.size)
        starts = range(0, len(memory.ids), size)
        features = [self._unit_features(render(plain_keys(memory.ids[start : start + size]))) for start in starts]
        self.register_buffer("features", torch.cat(features))
        self.register_buffer("labels", torch.from_numpy(memory.labels).to(self.features.device))

    def will_keep(self, remembered: int, met: int) -> tuple[int, int]:
        return 0, remembered * (row_bytes(self.features) + row_bytes(self.labels))

    def predict(self, images: Tensor) -> Tensor:
        """Return the votes [n, C] of the nearest images in the memory; classes that it does not hold can't win."""
        classes = self.network.head.out_features
        if not len(self.labels):
            return images.new_full((len(images), classes), -torch.inf)
        count = min(self.own.neighbors, len(self.labels))
        _, nearest = kernels.neighbors(self._unit_features(images), self.features, count)
        known = (torch.arange(classes, device=images.device)[:, None] == self.labels).any(dim=1)
        return networks.mask_unseen(mixmatch.votes(self.labels[nearest], classes), known)

    def probabilities(self, scores: Tensor) -> Tensor:
        """Return the classes' shares of the votes."""
        votes = scores.clamp(min=0)
        return votes / votes.sum(dim=1, keepdim=True)

    def _unit_features(self, images: Tensor) -> Tensor:
        return F.normalize(self.network(images).features, dim=1)
