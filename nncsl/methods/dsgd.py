"""DSGD (Fan et al., 2024): how walks on the graph of the replayed images' similarities spread is distilled."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from nncsl.config import Config
from nncsl.methods.base import Step
from nncsl.methods.distillation import Seen, of_replay
from nncsl.methods.nncsl import NNCSL
from nncsl.networks import Network


@dataclass(frozen=True)
class DSGDSettings:
    """steps: of a walk; restart: how likely each of them goes back to where the walk began."""

    steps: int = 3
    restart: float = 0.2


class DSGD(NNCSL):
    """CSL, with walks among the old supports instead of NND. It asks the old network about remembered images alone."""

    Settings: ClassVar[type] = DSGDSettings
    own: DSGDSettings

    def __init__(self, network: Network, config: Config, own: Any) -> None:
        super().__init__(network, config, own)
        self.distillation = of_replay(config, walks)


def walks(step: Step, method: Any, seen: Seen) -> Tensor:
    """Walks among the old supports end where they would in the old network."""
    assert seen.supports is not None
    own = method.own
    return walk_loss(seen.supports, step.targets["supports"], method.config.tau, own.steps, own.restart)


def walk_loss(features: Tensor, teacher_features: Tensor, temperature: float, steps: int, restart: float) -> Tensor:
    """Return the mean over starts of KL(teacher's ends, student's ends); features [K, D] each, K > 1."""
    with torch.autocast(features.device.type, enabled=False):
        found = walk_ends(features, temperature, steps, restart)
        with torch.no_grad():
            wanted = walk_ends(teacher_features, temperature, steps, restart)
        tiny = torch.finfo(found.dtype).tiny  # far images may be out of reach
        return F.kl_div(found.clamp_min(tiny).log(), wanted, reduction="batchmean")


def walk_ends(features: Tensor, temperature: float, steps: int, restart: float) -> Tensor:
    """Return where walks from each row end, by row: [K, K], rows sum to 1.

    A step goes to another row by softmax(cosine / temperature), or, with probability ``restart``, back to the start:
    personalized PageRank, as far as so many steps take it.
    """
    rows = F.normalize(features.to(torch.promote_types(features.dtype, torch.float32)), dim=1)
    home = torch.eye(len(rows), dtype=rows.dtype, device=rows.device)
    onward = (rows @ rows.T / temperature).masked_fill(home.bool(), float("-inf")).softmax(dim=1)
    ends = home
    for _ in range(steps):
        ends = torch.lerp(ends @ onward, home, restart)
    return ends
