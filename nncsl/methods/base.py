"""What a method is to the loop: a few facts about what it needs, and its losses."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from nncsl.batches import Batch
from nncsl.config import Config
from nncsl.networks import Network
from nncsl.teachers import Targets


@dataclass(frozen=True)
class Student:
    """What the network said of a batch.

    queries: [views, N, D] projections of the unlabeled views, query_features [views, N, F]; supports: [K, D];
    logits: [K, C] of the supports, unseen classes masked.
    """

    network: Network
    queries: Tensor
    query_features: Tensor
    supports: Tensor
    logits: Tensor


@dataclass(frozen=True)
class Classes:
    """Which classes are current and which old, as the loop has them; labels are renumbered within either group."""

    current: tuple[int, ...]
    old: tuple[int, ...]
    total: int

    @property
    def seen(self) -> tuple[int, ...]:
        return self.old + self.current

    def seen_mask(self, device: torch.device) -> Tensor:
        """bool [total]."""
        mask = torch.zeros(self.total, dtype=torch.bool)
        mask[list(self.seen)] = True
        return mask.to(device)

    def renumber(self, labels: Tensor, group: tuple[int, ...]) -> Tensor:
        """Positions of labels within ``group``, int64 of the same shape."""
        table = torch.full((self.total,), -1, dtype=torch.int64, device=labels.device)
        table[list(group)] = torch.arange(len(group), device=labels.device)
        return table[labels]


@dataclass(frozen=True)
class Losses:
    """total is minimized; parts are for the record; predictions [2, N]: the classes large views are taken for."""

    total: Tensor
    parts: dict[str, Tensor]
    predictions: Tensor | None = None


class Method:
    """A system under the common protocol. A new one is a subclass in its own file and a line in METHODS."""

    uses_unlabeled: ClassVar[bool] = True
    uses_memory: ClassVar[bool] = True
    distills: ClassVar[bool] = False
    one_task: ClassVar[bool] = False

    def backbone_share(self, config: Config) -> float:
        """The factor on L_LIN's gradient where it enters the backbone; the head always learns at full strength."""
        return 1.0

    def losses(
        self, student: Student, batch: Batch, targets: Targets | None, classes: Classes, config: Config
    ) -> Losses:
        """The losses of one step."""
        raise TypeError(f"{type(self).__name__} has to define losses()")


def on(device: torch.device, mask: np.ndarray) -> Tensor:
    """A host mask where the tensors are."""
    return torch.from_numpy(mask).to(device)
