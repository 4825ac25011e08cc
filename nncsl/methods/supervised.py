"""Cross-entropy on labeled images only: the lower bound, and experience replay."""

from typing import ClassVar

from nncsl import objectives
from nncsl.batches import Batch
from nncsl.config import Config
from nncsl.methods.base import Classes, Losses, Method, Student
from nncsl.teachers import Targets


class Finetune(Method):
    """The current task's labels and nothing else: what forgetting looks like."""

    uses_unlabeled: ClassVar[bool] = False
    uses_memory: ClassVar[bool] = False

    def losses(
        self, student: Student, batch: Batch, targets: Targets | None, classes: Classes, config: Config
    ) -> Losses:
        loss = objectives.lin_loss(student.logits, batch.labels.to(student.logits.device))
        return Losses(loss, {"lin": loss})


class ER(Finetune):
    """Experience replay: each batch of the task comes with an equally large one of the memory."""

    uses_memory: ClassVar[bool] = True
