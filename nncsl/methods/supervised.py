"""Cross-entropy on labeled images only: the lower bound, and experience replay."""

from typing import ClassVar

import numpy as np

from nncsl import objectives
from nncsl.batches import Batch, Draws, Moment
from nncsl.methods.base import Losses, Method, Step


class Finetune(Method):
    """The current task's labels and nothing else: what forgetting looks like."""

    uses_memory: ClassVar[bool] = False

    def draw(self, draws: Draws, now: Moment) -> Batch:
        ids = draws.labeled(now, self.config.labeled_batch)
        if self.uses_memory:
            ids = np.concatenate([ids, draws.remembered(now, len(ids))])
        return {"labeled": draws.labeled_views("support", ids, now, 1)}

    def losses(self, step: Step) -> Losses:
        (outputs,) = step.see("labeled")
        loss = objectives.lin_loss(self.seen_logits(outputs.features, step.task), step.labels("labeled"))
        return Losses(loss, {"lin": loss})


class ER(Finetune):
    """Experience replay: each batch of the task comes with an equally large one of the memory."""

    uses_memory: ClassVar[bool] = True
