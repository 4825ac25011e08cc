"""What turns images into features, by its name: the small network of the presets, torchvision's, timm's, one's own."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

from nncsl.config import NetworkConfig
from nncsl.errors import ConfigError


class Backbone(NamedTuple):
    """Images through ``stem`` and ``blocks`` to maps [n, F, h, w] or features [n, F].

    module: the whole, whose state dict has the names that files of weights have; stem: empty where nobody knows what
    is inside, and then blocks is one; features: F; colors: channels of the images that it takes; initialize: draws the
    weights that are not drawn by then.
    """

    module: nn.Module
    stem: nn.Sequential
    blocks: nn.Sequential
    features: int
    colors: int
    memory_format: torch.memory_format = torch.contiguous_format
    initialize: Callable[[], None] = lambda: None


def whole(module: nn.Module, features: int, colors: int = 3) -> Backbone:
    """Return a backbone of one piece."""
    return Backbone(module, nn.Sequential(), nn.Sequential(module), features, colors)


def build(config: NetworkConfig, channels: int) -> Backbone:
    """Return the configured backbone with random weights; nothing is ever downloaded."""
    from nncsl.networks import custom, residual, resnets, timm_models

    name = config.backbone
    if name == "residual":
        return residual.build(config, channels)
    if name in resnets.NAMES:
        return resnets.build(config)
    if name.startswith("timm:"):
        return timm_models.build(name.removeprefix("timm:"))
    if ":" in name:
        return custom.build(name)
    raise ConfigError(
        f"network.backbone={name!r}: expected residual, {', '.join(resnets.NAMES)}, timm:NAME, or your module:function"
    )
