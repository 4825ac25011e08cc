"""Pretraining without labels: soft nearest neighbours in which each image of a batch is a class of its own."""

from typing import ClassVar

import torch
from torch import Tensor

from nncsl import kernels
from nncsl.batches import Batch, Draws, Moment
from nncsl.methods.base import Losses, Method, Step


class Pretrain(Method):
    """A view's nearest neighbour among one view of every image is to be its own image's; used by `nncsl pretrain`.

    The objective's self-supervised part with labels that cost nothing: L_SNN where views of one image are support and
    query, and L_MEM, which keeps the images of a batch equally likely.
    """

    uses_memory: ClassVar[bool] = False
    one_task: ClassVar[bool] = True
    classifies: ClassVar[bool] = False

    def uncaptured(self) -> str:
        return ""

    def draw(self, draws: Draws, now: Moment) -> Batch:
        return draws.unlabeled_views(now)

    def losses(self, step: Step) -> Losses:
        (large,) = step.see("large")
        views = list(large.projections.chunk(2))
        if "small" in step.batch:
            (small,) = step.see("small")
            views += small.projections.split(len(views[0]))
        compared = [
            self._compare(torch.cat([view for view in views if view is not supports]), supports)
            for supports in views[:2]
        ]
        snn, mem, found = (torch.stack(parts).mean() for parts in zip(*compared, strict=True))
        return Losses(snn + self.config.lambda_mem * mem, {"snn": snn, "mem": mem, "own_image": 100.0 * found})

    def _compare(self, queries: Tensor, supports: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Cross-entropy with the own image, minus the entropy of the mean, and the part that finds its own image.

        queries [views * N, D], supports [N, D], one of each image.
        """
        count = len(supports)
        own = torch.arange(count, device=supports.device)
        logs = kernels.snn(
            queries, supports, own, num_classes=count, temperature=self.config.tau, return_log=True
        ).unflatten(0, (-1, count))
        mean = logs.exp().mean(dim=(0, 1))
        found = (logs.detach().argmax(dim=2) == own).float().mean()
        return -logs.diagonal(dim1=1, dim2=2).mean(), torch.xlogy(mean, mean).sum(), found
