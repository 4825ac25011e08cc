"""Cross-entropy on labeled images only: the lower bound, experience replay, and what all such systems share."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from nncsl import objectives, optim
from nncsl.batches import Batch, Draws, Moment
from nncsl.data.tasks import Task
from nncsl.methods import schedules
from nncsl.methods.base import Losses, Method, Phase, Step


@dataclass(frozen=True)
class SupervisedSettings:
    """Plain SGD, and what images look like.

    optimizer: "preset" takes the preset's optimizer, rates and schedule instead, those of the nearest-neighbor methods.
    milestones: parts of a task after each of which the rate is multiplied by milestone_factor.
    """

    optimizer: Literal["plain", "preset"] = "plain"
    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    milestones: tuple[float, ...] = ()
    milestone_factor: float = 0.2
    views: Literal["weak", "strong", "support"] = "weak"


class Finetune(Method):
    """The current task's labels and nothing else: what forgetting looks like."""

    Settings: ClassVar[type] = SupervisedSettings
    uses_memory: ClassVar[bool] = False
    own: SupervisedSettings

    def phases(self, task: Task) -> list[Phase]:
        if self.own.optimizer == "preset":
            return super().phases(task)
        rate = schedules.milestones(self.own.milestones, self.own.milestone_factor)
        return [Phase("train", self.config.epochs, task.steps, rate)]

    def begin(self, phase: Phase, task: Task) -> list[torch.optim.Optimizer]:
        return super().begin(phase, task) if self.own.optimizer == "preset" else [self.sgd(self.network)]

    def sgd(self, *modules: torch.nn.Module, **other: Any) -> torch.optim.Optimizer:
        """Return the plain optimizer of some modules, with other values than the settings' where given."""
        own = {"lr": self.own.lr, "momentum": self.own.momentum, "weight_decay": self.own.weight_decay, **other}
        parameters = [p for module in modules for p in module.parameters()]
        return torch.optim.SGD(optim.with_backbone_rate([{"params": parameters, **own}], modules, self.config), **own)

    def draw(self, draws: Draws, now: Moment) -> Batch:
        size = self.config.labeled_batch
        ids = draws.labeled(now, size)
        if self.uses_memory:
            ids = np.concatenate([ids, draws.remembered(now, size)])
        return {"labeled": draws.labeled_views(self.own.views, ids, now, 1)}

    def uncaptured(self) -> str:
        return ""

    def losses(self, step: Step) -> Losses:
        (outputs,) = step.see("labeled")
        loss = objectives.lin_loss(self.seen_logits(outputs.features, step.task), step.labels("labeled"))
        return Losses(loss, {"lin": loss})


class ER(Finetune):
    """Experience replay: each batch of the task comes with one of the memory; one mean over both."""

    uses_memory: ClassVar[bool] = True
