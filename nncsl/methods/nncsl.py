"""NNCSL: soft nearest-neighbour learning on the current classes, and its distillation on the old ones."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from nncsl import kernels, objectives
from nncsl.batches import Batch, Draws, Moment
from nncsl.config import Config
from nncsl.data.tasks import Task
from nncsl.methods.base import Asked, Losses, Method, Phase, Step
from nncsl.methods.distillation import DISTILLATIONS, Seen
from nncsl.networks import Network
from nncsl.replay import Memory
from nncsl.steps.transfer import constant


class NNCSL(Method):
    """L_SNN + L_MEM on the current task's supports, L_LIN on all labeled images, L_NND on the old supports."""

    distills: ClassVar[bool] = True
    sees_features: ClassVar[bool] = True
    filters: ClassVar[bool] = True  # whether unlabeled images are compared with their own task's supports only

    def __init__(self, network: Network, config: Config, own: Any) -> None:
        super().__init__(network, config, own)
        self.distillation = DISTILLATIONS[config.distillation]
        if config.distillation == "feature":  # compares a linear map of the projections; it starts as the identity
            size = config.network.projection
            self.feature_map = nn.Linear(size, size)
            nn.init.eye_(self.feature_map.weight)
            nn.init.zeros_(self.feature_map.bias)

    @property
    def lambda_lin(self) -> float:
        return self.config.lambda_lin

    def uncaptured(self) -> str:
        remembered = self.filters and self.config.unlabeled_memory
        return "unlabeled_memory: how many images are old differs from step to step" if remembered else ""

    def asks(self, phase: Phase, task: Task, memory: Memory) -> dict[str, Asked]:
        return self.distillation.asks(task, memory) if self.distills else {}

    def draw(self, draws: Draws, now: Moment) -> Batch:
        return {**draws.unlabeled_views(now), "supports": draws.supports(now)}

    def notes(self, batch: Batch, task: Task) -> dict[str, np.ndarray]:
        """Return the supports in the order old, current, and their labels renumbered: among old classes, ...

        "order" and "back": supports in that order, and where each stands there; "old labels", "current labels" of its
        parts, or, without the filter, "seen labels" of all of them as they are. "... images": rows of unlabeled images
        to be compared with such supports, where that is not all of them.
        """
        large, supports = batch["large"], batch["supports"]
        assert supports.labels is not None
        remembered, labels = large.old[: len(large) // 2], supports.labels.numpy()
        order = np.argsort(~supports.old, kind="stable")
        found = {"order": order, "back": np.argsort(order)}
        for name, classes in {"old": task.old, **self._groups(task)}.items():
            ours = np.full(len(supports), True) if name == "seen" else supports.old == (name == "old")
            images = np.full(len(remembered), True) if name == "seen" else remembered == (name == "old")
            if classes:
                found[f"{name} labels"] = objectives.places(classes)[labels[ours]]
            if not images.all():
                found[f"{name} images"] = np.flatnonzero(images)
        return found

    def _groups(self, task: Task) -> dict[str, tuple[int, ...]]:
        """The classes that unlabeled images are compared with: their own task's, or with old ones if remembered."""
        return {"current": task.classes, "old": task.old} if self.filters else {"seen": task.seen}

    def losses(self, step: Step) -> Losses:
        large, supports = step.see("large", "supports")
        views = [large, *(step.see("small") if "small" in step.batch else [])]
        queries = torch.cat([view.projections for view in views])
        labels = step.labels("supports")
        parted = self._parted(step, supports.projections)
        snn, mem, guesses = self._neighbours(step, queries, parted)
        # The head learns at full strength; lambda_LIN weighs what reaches the backbone.
        logits = self.seen_logits(objectives.scale_gradient(supports.features, self.lambda_lin), step.task)
        lin = objectives.lin_loss(logits, labels)
        parts = {"snn": snn, "mem": mem, "lin": lin}
        total = objectives.plus(snn, mem, self.config.lambda_mem) + lin
        if step.targets:
            parts["nnd"] = self.distillation.loss(step, self, Seen(views, queries, parted.get("old")))
            total = total + self.config.lambda_nnd * parts["nnd"]
        return Losses(total, parts, {"large": guesses})

    def _parted(self, step: Step, supports: Tensor) -> dict[str, Tensor]:
        """Supports [K, D] by whose they are: "old" and "current" where there are both, and "seen", all of them."""
        old = step.batch["supports"].old.sum()
        parts = {"seen": supports}
        if not old or old == len(supports):
            return {**parts, "old": supports[:old], "current": supports[old:]}
        if self.filters or step.targets:
            sizes = [int(old), len(supports) - int(old)]
            parts["old"], parts["current"] = objectives.divide(supports, step.notes["order"], step.notes["back"], sizes)
        return parts

    def _neighbours(self, step: Step, queries: Tensor, supports: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """L_SNN, L_MEM and the classes that the large views are taken for, [2 N].

        queries [views * N, D], supports [K, D] by whose they are. With the filter, images of the current task meet the
        current supports and remembered unlabeled images the old ones: labeled and unlabeled images then have the same
        classes, which L_MEM relies on.
        """
        config, notes, device = self.config, step.notes, queries.device
        queries = queries.unflatten(0, (-1, len(step.batch["large"]) // 2))
        count = queries.shape[1]
        snn: Tensor | None = None
        mem: Tensor | None = None
        guesses = None
        for name, classes in self._groups(step.task).items():
            images = notes.get(f"{name} images")
            if images is not None and not len(images):
                continue
            parts = kernels.snn_loss(
                (queries if images is None else queries.index_select(1, images)).flatten(0, 1),
                supports[name],
                notes[f"{name} labels"],
                small_views=len(queries) - 2,
                sharpening=config.sharpening,
                num_classes=len(classes),
                temperature=config.tau,
                smoothing=config.smoothing,
            )
            each = count if images is None else len(images)
            snn = objectives.plus(snn, parts.cross_entropy, each / count)
            mem = objectives.plus(mem, parts.minus_entropy, each / count)
            guessed = constant(classes, device, torch.int64)[parts.predictions[: 2 * each]].unflatten(0, (2, each))
            if images is not None:
                guesses = torch.zeros((2, count), dtype=torch.int64, device=device) if guesses is None else guesses
                guessed = guesses.index_copy(1, images, guessed)
            guesses = guessed
        assert snn is not None and mem is not None and guesses is not None
        return snn, mem, guesses.flatten()
