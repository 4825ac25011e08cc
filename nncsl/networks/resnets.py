"""torchvision's ResNets, divided into what the passes know: a stem and residual blocks."""

from typing import Any

import torch
from torch import nn

from nncsl.config import NetworkConfig
from nncsl.networks.backbone import Backbone

NAMES = ("resnet18", "resnet34", "resnet50", "wide_resnet50_2")


def build(config: NetworkConfig) -> Backbone:
    """Return the ResNet of that name without its classifier.

    network.stem=cifar has the stem for small images, a 3x3 convolution and no pooling; imagenet has torchvision's own,
    which its published weights fit.
    """
    from nncsl.data.torchvision_compat import torchvision

    module: Any = getattr(torchvision.models, config.backbone)(weights=None)
    features = module.fc.in_features
    module.fc = nn.Identity()
    if config.stem == "cifar":
        width = module.conv1.out_channels
        module.conv1 = nn.Conv2d(3, width, 3, padding=config.stem_padding, bias=False)
        nn.init.kaiming_normal_(module.conv1.weight, mode="fan_out", nonlinearity="relu")
        module.maxpool = nn.Identity()
    stem = nn.Sequential(module.conv1, module.bn1, module.relu, module.maxpool)
    blocks = nn.Sequential(*module.layer1, *module.layer2, *module.layer3, *module.layer4)
    return Backbone(module, stem, blocks, features, 3, torch.channels_last)
