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
        drawn = {"labeled": draws.labeled(now, size)} if len(draws.task.labeled) else {}
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
        parts = {}
        for name, group, classes in (("lin", "labeled", step.task.classes), ("replay", "remembered", step.task.seen)):
            if group in step.batch:
                (outputs,) = step.see(group)  # a pass each: the memory's statistics are not the task's
                parts[name] = slice_loss(self.network.head(outputs.features), step.labels(group), classes)
        first, *second = parts.values()
        return Losses(first + second[0] if second else first, parts)
