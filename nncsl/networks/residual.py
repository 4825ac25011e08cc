"""The presets' own backbone: a residual network of any width and depth, with a stem for small or large images."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nncsl.config import NetworkConfig
from nncsl.networks.backbone import Backbone


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut (ResNet's basic block)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x), inplace=True)


class Residual(nn.Module):
    """Stem and blocks; ``features`` channels come out of the last one."""

    def __init__(self, config: NetworkConfig, channels: int) -> None:
        super().__init__()
        width = config.width
        if config.stem == "cifar":
            stem: list[nn.Module] = [nn.Conv2d(channels, width, 3, padding=config.stem_padding, bias=False)]
        else:
            stem = [nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False)]
        stem.append(nn.BatchNorm2d(width))
        if config.stem == "imagenet":  # before the ReLU: the same values and gradients, from a quarter of the maps
            stem.append(nn.MaxPool2d(3, stride=2, padding=1))
        self.stem = nn.Sequential(*stem, nn.ReLU(inplace=True))
        blocks: list[nn.Module] = []
        inputs = width
        for stage, count in enumerate(config.blocks):
            outputs = width * 2**stage
            for index in range(count):
                blocks.append(Block(inputs, outputs, stride=2 if stage and not index else 1))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.features = inputs

    def initialize(self) -> None:
        """Draw the convolutions' weights."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def build(config: NetworkConfig, channels: int) -> Backbone:
    """Return the residual network of these settings for images of so many channels."""
    module = Residual(config, channels)
    # Channels last is faster for narrow networks on a CPU, and what tensor cores want. With up to 8 channels the
    # backward pass of torch 2.13's strided 1x1 convolution corrupts memory in that layout (seen on 56-pixel maps).
    layout = torch.channels_last if config.width > 8 else torch.contiguous_format
    return Backbone(module, module.stem, module.blocks, module.features, channels, layout, module.initialize)
