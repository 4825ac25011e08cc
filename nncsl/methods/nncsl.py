"""NNCSL: soft nearest-neighbour learning on the current classes, and its distillation on the old ones."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from nncsl import kernels, objectives
from nncsl.batches import Batch, Draws, Moment
from nncsl.config import Config
from nncsl.data.tasks import Task
from nncsl.methods.base import Asked, Losses, Method, Phase, Step
from nncsl.methods.distillation import DISTILLATIONS
from nncsl.networks import Network
from nncsl.replay import Memory


class NNCSL(Method):
    """L_SNN + L_MEM on the current task's supports, L_LIN on all labeled images, L_NND on the old supports."""

    distills: ClassVar[bool] = True
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

    def asks(self, phase: Phase, task: Task, memory: Memory) -> dict[str, Asked]:
        return self.distillation.asks(task, memory) if self.distills else {}

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
            parts["nnd"] = self.distillation.loss(step, self, views, supports)
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
