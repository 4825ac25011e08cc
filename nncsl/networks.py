"""The one network: a residual backbone, the projector that nearest neighbours are found in, and a linear head."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nncsl.config import NetworkConfig


class Outputs(NamedTuple):
    """features [n, F] of the backbone, projections [n, D]; logits come from the head, where they are needed."""

    features: Tensor
    projections: Tensor


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


class Network(nn.Module):
    """Images [n, C, H, W] to features and projections; ``head`` turns features into logits over all classes."""

    def __init__(self, config: NetworkConfig, channels: int, num_classes: int) -> None:
        super().__init__()
        width = config.width
        # Channels last is faster for narrow networks on a CPU, and what tensor cores want. With up to 8 channels the
        # backward pass of torch 2.13's strided 1x1 convolution corrupts memory in that layout (seen on 56-pixel maps).
        self.memory_format = torch.channels_last if width > 8 else torch.contiguous_format
        if config.stem == "cifar":
            stem: list[nn.Module] = [nn.Conv2d(channels, width, 3, padding=config.stem_padding, bias=False)]
        else:
            stem = [nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False)]
        stem += [nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        if config.stem == "imagenet":
            stem.append(nn.MaxPool2d(3, stride=2, padding=1))
        self.stem = nn.Sequential(*stem)
        blocks: list[nn.Module] = []
        inputs = width
        for stage, count in enumerate(config.blocks):
            outputs = width * 2**stage
            for index in range(count):
                blocks.append(Block(inputs, outputs, stride=2 if stage and not index else 1))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.projector = nn.Sequential(
            nn.Linear(inputs, config.hidden),
            nn.BatchNorm1d(config.hidden),
            nn.ReLU(inplace=True),
            nn.Linear(config.hidden, config.hidden),
            nn.BatchNorm1d(config.hidden),
            nn.ReLU(inplace=True),
            nn.Linear(config.hidden, config.projection),
        )
        self.head = nn.Linear(inputs, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Outputs:
        return self.finish(self.blocks(self.stem(self.prepare(images))))

    def prepare(self, images: Tensor) -> Tensor:
        """Images in the layout that the convolutions are fast in."""
        return images.contiguous(memory_format=self.memory_format)

    def finish(self, maps: Tensor) -> Outputs:
        """From the last block's maps [n, F, h, w] to features and projections."""
        features = maps.mean(dim=(2, 3))
        return Outputs(features, self.projector(features))


def build(config: NetworkConfig, channels: int, num_classes: int, seed: int) -> Network:
    """A freshly initialized network; the global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = Network(config, channels, num_classes)
    return network.to(memory_format=network.memory_format)  # type: ignore[call-overload]


def autocast(precision: str, device: torch.device) -> AbstractContextManager:
    """Lower precision for what the network computes inside the block, for "bf16" and "fp16"."""
    kinds = {"bf16": torch.bfloat16, "fp16": torch.float16}
    return torch.autocast(device.type, kinds[precision]) if precision in kinds else nullcontext()


def mask_unseen(logits: Tensor, seen: Tensor) -> Tensor:
    """Logits [n, C], classes outside ``seen`` (bool [C]) at minus infinity: neither trained nor predicted."""
    return logits.masked_fill(~seen, float("-inf"))


def set_training(module: nn.Module, *, freeze_batchnorm: bool) -> None:
    """Set train mode; frozen BatchNorm uses its running statistics while its weight and bias train on."""
    module.train()
    if freeze_batchnorm:
        for inner in module.modules():
            if isinstance(inner, nn.modules.batchnorm._BatchNorm):
                inner.eval()


@torch.no_grad()
def recalibrate(network: nn.Module, batches: Iterable[Tensor]) -> None:
    """Replace BatchNorm's running statistics by the means of those of the batches, each batch counting the same."""
    norms = [module for module in network.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    modes = [(norm.training, norm.momentum) for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.train()
        norm.momentum = None  # torch's way to ask for a plain mean over batches
    for images in batches:
        network(images)
    for norm, (training, momentum) in zip(norms, modes, strict=True):
        norm.training, norm.momentum = training, momentum


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put everything into eval mode, without gradients, inside the block; every part then gets its own mode back."""
    modes = [(inner, inner.training) for inner in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for inner, training in modes:
            inner.training = training


def unit_projections(network: Network, images: Tensor) -> Tensor:
    """Return L2-normalized projections [n, D], fp32."""
    return F.normalize(network(images).projections.float(), dim=-1)


def head_logits(network: Network, images: Tensor) -> Tensor:
    """Return logits over all classes [n, C], fp32."""
    return network.head(network(images).features).float()


def nbytes(module: nn.Module) -> int:
    """Bytes of parameters and buffers."""
    return sum(t.numel() * t.element_size() for t in (*module.parameters(), *module.buffers()))
