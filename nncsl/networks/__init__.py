"""The network: a backbone, the projector that nearest neighbours are found in, and a linear head."""

from nncsl.networks.modes import evaluating, recalibrate, set_training
from nncsl.networks.network import (
    Network,
    Outputs,
    autocast,
    build,
    emulates,
    head_logits,
    mask_unseen,
    nbytes,
    unit_projections,
)
from nncsl.networks.residual import Block
from nncsl.networks.weights import pinned

__all__ = [
    "Block",
    "Network",
    "Outputs",
    "autocast",
    "build",
    "emulates",
    "evaluating",
    "head_logits",
    "mask_unseen",
    "nbytes",
    "pinned",
    "recalibrate",
    "set_training",
    "unit_projections",
]
