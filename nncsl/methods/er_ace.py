"""ER-ACE (Caccia et al., 2022): experience replay in which new images don't push old classes away.

With the project's linear head; public results have a cosine head.
"""

from typing import ClassVar

import numpy as np

from nncsl.batches import Batch, Draws, Moment
from nncsl.methods.base import Losses, Step
from nncsl.methods.slices import slice_loss
from nncsl.methods.supervised import Finetune


class ERACE(Finetune):
    """The task's images compete among its classes only; memory images, from the second task on, among all seen ones.

    Only the memory ranks new classes against old ones, so it has to hold both: it takes in a task's images first.
    """

    uses_memory: ClassVar[bool] = True
    remembers_first: ClassVar[bool] = True

    def draw(self, draws: Draws, now: Moment) -> Batch:
        size = self.config.labeled_batch
        drawn = {"labeled": draws.labeled(now, size)}
        if draws.task.old and len(draws.memory.ids):
            drawn["remembered"] = draws.remembered(now, size)
        batch = {}
        for turn, (name, ids) in enumerate(drawn.items()):  # an image may be in both: in different views
            moments = np.full(len(ids), 2 * now.number + turn)
            batch[name] = draws.labeled_views(self.own.views, ids, now, 1, moments)
        return batch

    def uncaptured(self) -> str:
        return ""

    def losses(self, step: Step) -> Losses:
        (stream,) = step.see("labeled")
        current = slice_loss(self.network.head(stream.features), step.labels("labeled"), step.task.classes)
        if "remembered" not in step.batch:
            return Losses(current, {"lin": current})
        (memory,) = step.see("remembered")  # a pass of its own: its statistics are not the task's
        replay = slice_loss(self.network.head(memory.features), step.labels("remembered"), step.task.seen)
        return Losses(current + replay, {"lin": current, "replay": replay})
