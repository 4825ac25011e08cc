"""iCaRL: old classes are kept as sigmoids of the old network, and told apart by the nearest mean of their exemplars."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from nncsl import replay
from nncsl.batches import Batch, Draws, Moment, Render, plain_keys
from nncsl.config import Config
from nncsl.data.tasks import Task
from nncsl.errors import ConfigError
from nncsl.methods.base import Answer, Asked, Losses, Phase, Step, head_logits
from nncsl.methods.supervised import ER, SupervisedSettings
from nncsl.networks import Network
from nncsl.passes import inference_batch
from nncsl.replay import Memory, Ranking
from nncsl.steps.transfer import constant


@dataclass(frozen=True)
class ICaRLSettings(SupervisedSettings):
    """weight_decay: 2e-5 is the method's own term, 1e-5 times the sum of all squared parameters."""

    weight_decay: float = 2e-5
    nesterov: bool = False

    def __post_init__(self) -> None:
        if self.nesterov and not self.momentum > 0:
            raise ConfigError(f"own.nesterov=true needs momentum, got own.momentum={self.momentum}; e.g. 0.9")


class ICaRL(ER):
    """Binary cross-entropy on task and memory as one set; what old outputs should say, the old network said."""

    Settings: ClassVar[type] = ICaRLSettings
    decides_by: ClassVar[str | None] = "the nearest mean of a class's remembered images"
    own: ICaRLSettings
    means: Tensor  # [C, F], unit length; nan where a class has none

    def __init__(self, network: Network, config: Config, own: Any) -> None:
        super().__init__(network, config, own)
        self.register_buffer("means", torch.full(network.head.weight.shape, torch.nan))

    def begin(self, phase: Phase, task: Task) -> list[torch.optim.Optimizer]:
        memory, classes = self.config.memory, task.num_classes
        if memory < classes:
            raise ConfigError(
                f"memory={memory}: icarl predicts by remembered images of each of the {classes} classes; "
                f"use --memory {classes} or more"
            )
        return super().begin(phase, task)

    def sgd(self, *modules: torch.nn.Module, **other: Any) -> torch.optim.Optimizer:
        return super().sgd(*modules, **({"nesterov": self.own.nesterov} | other))

    def asks(self, phase: Phase, task: Task, memory: Memory) -> dict[str, Asked]:
        if not task.old:
            return {}
        ids = np.concatenate([task.labeled, memory.ids])
        return {"labeled": Asked(self.own.views, ids, sigmoids(task.old), role="support", unit=False)}

    def draw(self, draws: Draws, now: Moment) -> Batch:
        ids = draws.merged(now, self.config.labeled_batch)
        return {"labeled": draws.labeled_views(self.own.views, ids, now, 1)}

    def uncaptured(self) -> str:
        return ""

    def losses(self, step: Step) -> Losses:
        (outputs,) = step.see("labeled")
        # Not masked: classes to come have target 0, and the mean over all outputs keeps its divisor.
        logits = self.network.head(outputs.features)
        loss = binary_loss(logits, step.labels("labeled"), step.task.old, step.targets.get("labeled"))
        return Losses(loss, {"bce": loss})

    def rank(self, task: Task, memory: Memory, answers: Callable[[np.ndarray, Answer], Tensor]) -> Ranking:
        if self.config.memory_selection == "random":
            return super().rank(task, memory, answers)
        return replay.herded_ranking(answers(task.labeled, unit_features), task.labeled)

    def end(self, task: Task, memory: Memory, render: Render) -> None:
        self.means.fill_(torch.nan)
        size = inference_batch(self.network, self.config.views.large.size)
        for label in np.unique(memory.labels):
            ids = memory.ids[memory.labels == label]
            found, mirrored = [], []
            for start in range(0, len(ids), size):
                images = render(plain_keys(ids[start : start + size]))
                found.append(unit_features(self, images))
                # Where views are never flipped (digits), a mirrored image is not one of the class.
                mirrored.append(unit_features(self, images.flip(-1)) if self.config.views.flip > 0 else found[-1])
            self.means[label] = class_mean(torch.cat(found), torch.cat(mirrored))

    def predict(self, images: Tensor) -> Tensor:
        return closeness(unit_features(self, images), self.means)


def unit_features(method: Any, images: Tensor) -> Tensor:
    """Answer with L2-normalized features of the backbone [n, F]."""
    return F.normalize(method.network(images).features, dim=1)


def sigmoids(classes: tuple[int, ...]) -> Answer:
    """Return the answer that says of each image how much it belongs to each of these classes, [n, len(classes)]."""
    return lambda method, images: head_logits(method, images)[:, list(classes)].sigmoid()


def binary_loss(logits: Tensor, labels: Tensor, old: tuple[int, ...], answers: Tensor | None) -> Tensor:
    """Return the mean binary cross-entropy over images and all outputs; logits [n, C], labels [n].

    answers [n, len(old)] are the targets of old classes instead of labels; None: labels are the targets of all.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    targets = F.one_hot(labels, logits.shape[1]).to(logits.dtype)
    if answers is not None:
        targets[:, constant(tuple(old), logits.device, torch.int64)] = answers.to(logits.dtype)
    return F.binary_cross_entropy_with_logits(logits, targets)


def class_mean(features: Tensor, mirrored: Tensor) -> Tensor:
    """Return the unit mean [F] of a class, from unit features [n, F] of its images and of their mirror images."""
    return F.normalize((features.mean(dim=0) + mirrored.mean(dim=0)) / 2, dim=0)


def closeness(features: Tensor, means: Tensor) -> Tensor:
    """Return minus the distances [n, C] of features [n, F] to means [C, F]; minus infinity where a mean is nan."""
    distances = torch.cdist(features, means, compute_mode="donot_use_mm_for_euclid_dist")
    return -distances.nan_to_num(nan=torch.inf)
