"""NNCSL: soft nearest-neighbour learning on the current classes, and its distillation on the old ones."""

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nncsl import kernels, objectives
from nncsl.batches import Batch, Draws, Moment
from nncsl.config import Config
from nncsl.data.tasks import Task
from nncsl.methods.base import Asked, Losses, Method, Phase, Step, head_logits, unit_projections
from nncsl.networks import Network
from nncsl.replay import Memory


class NNCSL(Method):
    """L_SNN + L_MEM on the current task's supports, L_LIN on all labeled images, L_NND on the old supports."""

    distills: ClassVar[bool] = True
    filters: ClassVar[bool] = True  # whether unlabeled images are compared with their own task's supports only

    def __init__(self, network: Network, config: Config, own: Any) -> None:
        super().__init__(network, config, own)
        if config.distillation == "feature":  # compares a linear map of the projections; it starts as the identity
            size = config.network.projection
            self.feature_map = nn.Linear(size, size)
            nn.init.eye_(self.feature_map.weight)
            nn.init.zeros_(self.feature_map.bias)

    @property
    def lambda_lin(self) -> float:
        return self.config.lambda_lin

    def asks(self, phase: Phase, task: Task, memory: Memory) -> dict[str, Asked]:
        # Without a memory there are no old supports for NND to compare with.
        if not (self.distills and task.old) or (self.config.distillation == "nnd" and not len(memory.ids)):
            return {}
        unlabeled = np.concatenate([task.unlabeled, memory.unlabeled])
        if self.config.distillation == "kd":
            return {kind: Asked(kind, unlabeled, head_logits, unit=False) for kind in ("large", "small")}
        asked = {kind: Asked(kind, unlabeled, unit_projections) for kind in ("large", "small")}
        if self.config.distillation == "nnd":
            asked["supports"] = Asked("support", memory.ids, unit_projections, role="replay")
        return asked

    def draw(self, draws: Draws, now: Moment) -> Batch:
        return {**draws.unlabeled_views(now), "supports": draws.supports(now)}

    def losses(self, step: Step) -> Losses:
        large, supports = step.see("large", "supports")
        views = [large, *(step.see("small") if "small" in step.batch else [])]
        queries = torch.cat([view.projections for view in views])
        labels = step.labels("supports")
        snn, mem, guesses = self._neighbours(step, queries, supports.projections, labels)
        # The head learns at full strength; lambda_LIN weighs what reaches the backbone.
        logits = self.seen_logits(objectives.scale_gradient(supports.features, self.lambda_lin), step.task)
        lin = objectives.lin_loss(logits, labels)
        parts = {"snn": snn, "mem": mem, "lin": lin}
        total = snn + self.config.lambda_mem * mem + lin
        if step.targets:
            features = torch.cat([view.features for view in views])
            parts["nnd"] = self._distillation(step, queries, features, supports.projections, labels)
            total = total + self.config.lambda_nnd * parts["nnd"]
        return Losses(total, parts, {"large": guesses})

    def _neighbours(
        self, step: Step, queries: Tensor, supports: Tensor, labels: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """L_SNN, L_MEM and the classes that the large views are taken for, [2 N].

        queries [views * N, D], supports [K, D]. With the filter, images of the current task meet the current supports
        and remembered unlabeled images the old ones: labeled and unlabeled images then have the same classes, which
        L_MEM relies on.
        """
        config, task = self.config, step.task
        large, device = step.batch["large"], queries.device
        queries = queries.unflatten(0, (-1, len(large) // 2))
        remembered = torch.from_numpy(large.old[: queries.shape[1]]).to(device)
        old = torch.from_numpy(step.batch["supports"].old).to(device)
        if self.filters:
            groups = [(~remembered, ~old, task.classes), (remembered, old, task.old)]
        else:
            groups = [(torch.ones_like(remembered), torch.ones_like(old), task.seen)]
        snn, mem = queries.new_zeros(()), queries.new_zeros(())
        guesses = torch.zeros((2, len(remembered)), dtype=torch.int64, device=device)
        for images, voters, classes in groups:
            count = int(images.sum())
            if not count:
                continue
            parts = kernels.snn_loss(
                (queries if count == len(images) else queries[:, images]).flatten(0, 1),
                supports[voters],
                objectives.positions(labels[voters], classes),
                small_views=len(queries) - 2,
                sharpening=config.sharpening,
                num_classes=len(classes),
                temperature=config.tau,
                smoothing=config.smoothing,
            )
            share = count / len(images)
            snn, mem = snn + share * parts.cross_entropy, mem + share * parts.minus_entropy
            guessed = torch.tensor(classes, device=device)[parts.predictions[: 2 * count]]
            guesses[:, images] = guessed.unflatten(0, (2, count))
        return snn, mem, guesses.flatten()

    def _distillation(self, step: Step, queries: Tensor, features: Tensor, supports: Tensor, labels: Tensor) -> Tensor:
        """The configured distillation loss on all unlabeled views."""
        config, old = self.config, step.task.old
        targets = torch.cat([step.targets[kind] for kind in ("large", "small") if kind in step.targets])
        if config.distillation == "kd":
            logits = self.network.head(features.float())[:, list(old)]
            return objectives.kd_loss(logits, targets[:, list(old)], config.kd_temperature)
        if config.distillation == "feature":
            return objectives.feature_loss(self.feature_map(F.normalize(queries.float(), dim=-1)), targets)
        remembered = torch.from_numpy(step.batch["supports"].old).to(queries.device)
        return kernels.nnd_loss(
            queries,
            supports[remembered],
            targets,
            step.targets["supports"],
            objectives.positions(labels[remembered], old),
            num_classes=len(old),
            temperature=config.tau,
            smoothing=config.smoothing,
        )
