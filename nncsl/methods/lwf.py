"""Learning without forgetting: on the new images, the old outputs stay what they were."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from nncsl import objectives
from nncsl.data.tasks import Task
from nncsl.methods.base import Asked, Losses, Phase, Step, head_logits
from nncsl.methods.slices import slice_loss
from nncsl.methods.supervised import Finetune, SupervisedSettings
from nncsl.replay import Memory
from nncsl.steps.transfer import constant

WARM_UP = "warm-up"


@dataclass(frozen=True)
class LwFSettings(SupervisedSettings):
    """strength: of distillation (alpha); temperature: by which the compared outputs are softened (tau)."""

    strength: float = 0.5
    temperature: float = 2.0


class LwF(Finetune):
    """Finetuning, in later tasks after a warm-up of the new outputs and with distillation of the old ones.

    What the old network says of a plain image is the target for every view of it.
    """

    Settings: ClassVar[type] = LwFSettings
    own: LwFSettings

    def phases(self, task: Task) -> list[Phase]:
        (train,) = super().phases(task)
        return [train._replace(name=WARM_UP), train] if task.old else [train]

    def begin(self, phase: Phase, task: Task) -> list[torch.optim.Optimizer]:
        if phase.name == WARM_UP and self.own.optimizer == "plain":
            return [self.sgd(self.network.head, weight_decay=0.0)]  # decay would change the old outputs
        return super().begin(phase, task)

    def mode(self, phase: Phase, task: Task) -> None:
        if phase.name == WARM_UP:
            self.eval()
        else:
            super().mode(phase, task)

    def asks(self, phase: Phase, task: Task, memory: Memory) -> dict[str, Asked]:
        if phase.name == WARM_UP or not task.old:
            return {}
        old = list(task.old)

        def old_logits(method: Any, images: Tensor) -> Tensor:
            return head_logits(method, images)[:, old]

        return {"labeled": Asked("plain", task.labeled, old_logits, role="support", unit=False)}

    def uncaptured(self) -> str:
        return ""

    def losses(self, step: Step) -> Losses:
        if step.phase.name == WARM_UP:
            return self._warm_up_losses(step)
        if "labeled" not in step.targets:  # the first task, or no teacher
            return super().losses(step)
        (outputs,) = step.see("labeled")
        logits = self.seen_logits(outputs.features, step.task)
        lin = objectives.lin_loss(logits, step.labels("labeled"))
        old = logits[:, constant(step.task.old, logits.device, torch.int64)]
        kd = objectives.softened_loss(old, step.targets["labeled"], self.own.temperature)
        return Losses(lin + self.own.strength * kd, {"lin": lin, "kd": kd})

    def _warm_up_losses(self, step: Step) -> Losses:
        """Cross-entropy among the task's own outputs: those of old classes get no gradient, nor does the backbone."""
        with torch.no_grad():
            (outputs,) = step.see("labeled")
        current = step.task.classes
        lin = slice_loss(self.network.head(outputs.features), step.labels("labeled"), current)
        return Losses(lin, {"lin": lin})
