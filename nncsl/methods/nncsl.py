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


class NNCSL(Method):
    """L_SNN + L_MEM on the current task's supports, L_LIN on all labeled images, L_NND on the old supports."""

    distills: ClassVar[bool] = True
    weighs_labels: ClassVar[bool] = True
    without_labels: ClassVar[str] = "remembered labels train the head, and the old network's neighborhoods are kept"
    sees_features: ClassVar[bool] = True
    together: ClassVar[tuple[str, ...]] = ("large", "supports")  # groups of one pass, in which these two come first
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
        """Return labels of supports renumbered among their own classes, old supports standing before current ones.

        "old labels", "current labels", or, without the filter, "seen labels" of all of them. "... images": rows of
        unlabeled images to be compared with such supports, where that is not all of them.
        """
        large, supports = batch["large"], batch["supports"]
        assert supports.labels is not None
        if not (np.diff(supports.old.astype(np.int8)) <= 0).all():
            raise ValueError("supports must have their old rows first, as Draws.supports gives them")
        remembered, labels = large.old[: len(large) // 2], supports.labels.numpy()
        found = {}
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
        config, large = self.config, len(step.batch["large"])
        both = step.see_joined(*self._together(step))
        small = step.see("small") if "small" in step.batch else []
        supported = self._sizes(step)
        queries, *rows = objectives.arrange(
            both.projections, [view.projections for view in small], [large, *supported.values()]
        )
        supports = dict(zip(supported, rows, strict=True))
        snn, mem, guesses = self._neighbours(step, queries, supports)
        head = self.head_losses(step, both.features, guesses)
        weights = {"snn": 1.0, "mem": config.lambda_mem, "nnd": config.lambda_nnd}
        weights |= {name: weight for name, (weight, _) in head.items()}
        parts = {name: loss for name, (_, loss) in head.items()}
        if snn is not None and mem is not None:  # else a task without labels: its images have no supports of their own
            parts = {"snn": snn, "mem": mem, **parts}
        if step.targets:
            seen = [both.features[:large], *(view.features for view in small)]
            parts["nnd"] = self.distillation.loss(step, self, Seen(seen, queries, self._old(step, supports)))
        known = {} if guesses is None else {"large": guesses}
        return Losses({name: weights[name] for name in parts}, parts, known, self.among(step.task))

    def head_losses(self, step: Step, features: Tensor, guesses: Tensor | None) -> dict[str, tuple[float, Tensor]]:
        """Return weights and losses of the head, by name.

        features [n, F]: of the groups seen together; guesses [2 N]: what large views are taken for, places in
        :meth:`among`. The head learns at full strength; lambda_LIN weighs what reaches the backbone.
        """
        head = self.network.head
        unseen = step.task.unseen_on(features.device, head.out_features)
        return {"lin": (1.0, objectives.head_loss(features, head, step.labels("supports"), unseen, self.lambda_lin))}

    def among(self, task: Task) -> tuple[int, ...]:
        """The classes that unlabeled images may be taken for."""
        return tuple(c for classes in self._groups(task).values() for c in classes)

    def _together(self, step: Step) -> list[str]:
        return [name for name in self.together if name in step.batch]

    def _sizes(self, step: Step) -> dict[str, int]:
        """How many supports are whose, in their order: "old" and "current" ones, or without the filter all "seen"."""
        old = step.batch["supports"].old
        return {"old": int(old.sum()), "current": int((~old).sum())} if self.filters else {"seen": len(old)}

    def _old(self, step: Step, supports: Mapping[str, Tensor]) -> Tensor:
        """The old ones among supports [K, D] by whose they are: they stand first."""
        return supports["old"] if self.filters else supports["seen"][: int(step.batch["supports"].old.sum())]

    def _neighbours(
        self, step: Step, queries: Tensor, supports: Mapping[str, Tensor]
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """L_SNN, L_MEM and what the large views are taken for, [2 N]: places among the classes of all groups.

        None without supports for them. queries [views * N, D], supports [K, D] by whose they are. With the filter,
        images of the current task meet the current supports and remembered unlabeled images the old ones: labeled and
        unlabeled images then have the same classes, which L_MEM relies on.
        """
        config, notes, device = self.config, step.notes, queries.device
        queries = queries.unflatten(0, (-1, len(step.batch["large"]) // 2))
        count, first = queries.shape[1], 0
        snn: Tensor | None = None
        mem: Tensor | None = None
        guesses = None
        for name, classes in self._groups(step.task).items():
            images = notes.get(f"{name} images")
            if (images is not None and not len(images)) or not len(supports[name]):
                first += len(classes)
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
            guessed = parts.predictions[: 2 * each].unflatten(0, (2, each))
            if images is not None:
                guesses = torch.zeros((2, count), dtype=torch.int64, device=device) if guesses is None else guesses
                guessed = guesses.index_copy(1, images, guessed + first)
            guesses = guessed
            first += len(classes)
        return snn, mem, None if guesses is None else guesses.flatten()
