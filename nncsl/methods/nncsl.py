"""NNCSL: soft nearest-neighbour learning on the current classes, and its distillation on the old ones."""

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from nncsl import kernels, objectives
from nncsl.batches import Batch
from nncsl.config import Config
from nncsl.methods.base import Classes, Losses, Method, Student, on
from nncsl.teachers import Targets


class NNCSL(Method):
    """L_SNN + L_MEM on the current task's supports, L_LIN on all labeled images, L_NND on the old supports."""

    distills: ClassVar[bool] = True
    filters: ClassVar[bool] = True  # whether unlabeled images are compared with their own task's supports only

    def backbone_share(self, config: Config) -> float:
        return config.lambda_lin

    def losses(
        self, student: Student, batch: Batch, targets: Targets | None, classes: Classes, config: Config
    ) -> Losses:
        labels = batch.labels.to(student.supports.device)
        snn, mem, predictions = self._neighbours(student, batch, labels, classes, config)
        lin = objectives.lin_loss(student.logits, labels)
        parts = {"snn": snn, "mem": mem, "lin": lin}
        # L_LIN stands here without its weight: backbone_share applies it where the gradient enters the backbone.
        total = snn + config.lambda_mem * mem + lin
        if targets is not None:
            parts["nnd"] = distillation(student, batch, targets, labels, classes, config)
            total = total + config.lambda_nnd * parts["nnd"]
        return Losses(total, parts, predictions)

    def _neighbours(
        self, student: Student, batch: Batch, labels: Tensor, classes: Classes, config: Config
    ) -> tuple[Tensor, Tensor, Tensor]:
        """L_SNN, L_MEM and the classes that the large views are taken for, [2, N].

        With the filter, images of the current task meet the current supports and remembered unlabeled images the old
        ones: labeled and unlabeled images then have the same classes, which L_MEM relies on.
        """
        device = student.queries.device
        replayed, old = on(device, batch.replayed), on(device, batch.old)
        if self.filters:
            groups = [(~replayed, ~old, classes.current), (replayed, old, classes.old)]
        else:
            groups = [(torch.ones_like(replayed), torch.ones_like(old), classes.seen)]
        snn, mem = student.queries.new_zeros(()), student.queries.new_zeros(())
        predictions = torch.zeros((2, len(replayed)), dtype=torch.int64, device=device)
        for images, supports, names in groups:
            count = int(images.sum())
            if not count:
                continue
            queries = (student.queries if count == len(images) else student.queries[:, images]).flatten(0, 1)
            voters = student.supports[supports], classes.renumber(labels[supports], names)
            parts = kernels.snn_loss(
                queries,
                *voters,
                small_views=len(student.queries) - 2,
                sharpening=config.sharpening,
                num_classes=len(names),
                temperature=config.tau,
                smoothing=config.smoothing,
            )
            share = count / len(images)
            snn, mem = snn + share * parts.cross_entropy, mem + share * parts.minus_entropy
            classes_of_names = torch.tensor(names, device=device)
            predictions[:, images] = classes_of_names[parts.predictions[: 2 * count]].unflatten(0, (2, count))
        return snn, mem, predictions


def distillation(
    student: Student, batch: Batch, targets: Targets, labels: Tensor, classes: Classes, config: Config
) -> Tensor:
    """The configured distillation loss on all unlabeled views."""
    queries = student.queries.flatten(0, 1)
    if config.distillation == "kd":
        old_classes = list(classes.old)
        logits = student.network.head(student.query_features.flatten(0, 1).float())[:, old_classes]
        return objectives.kd_loss(logits, targets.queries[:, old_classes], config.kd_temperature)
    if config.distillation == "feature":
        mapped = student.network.feature_map(F.normalize(queries.float(), dim=-1))
        return objectives.feature_loss(mapped, targets.queries)
    old = on(queries.device, batch.old)
    return kernels.nnd_loss(
        queries,
        student.supports[old],
        targets.queries,
        targets.supports,
        classes.renumber(labels[old], classes.old),
        num_classes=len(classes.old),
        temperature=config.tau,
        smoothing=config.smoothing,
    )
