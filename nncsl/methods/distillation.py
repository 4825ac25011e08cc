"""What NNCSL keeps of the old network: its neighbourhoods (NND) or, for comparison, its logits or its projections.

Every loss takes the step, the method, and what the network made of the views.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from nncsl import kernels, objectives
from nncsl.config import Config
from nncsl.data.tasks import Task
from nncsl.errors import ConfigError
from nncsl.methods.base import Answer, Asked, Step, head_logits, unit_projections
from nncsl.replay import Memory
from nncsl.steps.transfer import constant, joined


class Seen(NamedTuple):
    """Features of the unlabeled views (large, small), their projections [views * N, D], and those of the old
    supports [K, D]."""

    features: Sequence[Tensor]
    queries: Tensor
    supports: Tensor


Loss = Callable[[Step, Any, Seen], Tensor]


def neighbors(step: Step, method: Any, seen: Seen) -> Tensor:
    """L_NND: the old supports vote for every view as they did in the old network."""
    config, old = method.config, step.task.old
    return kernels.nnd_loss(
        seen.queries,
        seen.supports,
        _answers(step),
        step.targets["supports"],
        step.notes["old labels"],
        num_classes=len(old),
        temperature=config.tau,
        smoothing=config.smoothing,
    )


def logits(step: Step, method: Any, seen: Seen) -> Tensor:
    """Softened logits of the old classes."""
    features = torch.cat(list(seen.features))
    old = constant(step.task.old, features.device, torch.int64)
    found = method.network.head(features.float())[:, old]
    return objectives.kd_loss(found, _answers(step)[:, old], method.config.kd_temperature)


def projections(step: Step, method: Any, seen: Seen) -> Tensor:
    """A linear map of the student's projections meets the teacher's."""
    return objectives.feature_loss(method.feature_map(F.normalize(seen.queries.float(), dim=-1)), _answers(step))


class Distillation(NamedTuple):
    """A loss, and what the old network is asked for it: of all unlabeled views, of the old supports, or of both."""

    loss: Loss
    answer: Answer
    unit: bool = True
    compares_supports: bool = False
    compares_views: bool = True

    def asks(self, task: Task, memory: Memory) -> dict[str, Asked]:
        """Return the questions by group; none without old classes, or without old supports where those are compared."""
        if not task.old or (self.compares_supports and not len(memory.ids)):
            return {}
        asked = {}
        if self.compares_views:
            ids = np.concatenate([task.unlabeled, memory.unlabeled])
            asked = {kind: Asked(kind, ids, self.answer, unit=self.unit) for kind in ("large", "small")}
        if self.compares_supports:
            asked["supports"] = Asked("support", memory.ids, self.answer, role="replay", unit=self.unit)
        return asked


DISTILLATIONS = {
    "nnd": Distillation(neighbors, unit_projections, compares_supports=True),
    "kd": Distillation(logits, head_logits, unit=False),
    "feature": Distillation(projections, unit_projections),
}


def of_replay(config: Config, loss: Loss) -> Distillation:
    """Return the distillation of a method that compares projections of the old supports among each other alone."""
    if config.distillation != Config.distillation:
        raise ConfigError(
            f"distillation={config.distillation!r}: {config.method} has its own; leave it out, or use --method nncsl"
        )
    return Distillation(loss, unit_projections, compares_supports=True, compares_views=False)


def _answers(step: Step) -> Tensor:
    """The old network's answers on all unlabeled views, [views * N, D]."""
    return joined([step.targets[kind] for kind in ("large", "small") if kind in step.targets])
