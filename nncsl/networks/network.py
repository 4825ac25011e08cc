"""Backbone, projector and head as one module."""

from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nncsl.config import NetworkConfig
from nncsl.networks import backbone as backbones
from nncsl.networks import weights


class Outputs(NamedTuple):
    """features [n, F] of the backbone, projections [n, D]; logits come from the head, where they are needed."""

    features: Tensor
    projections: Tensor


class Network(nn.Module):
    """Images [n, C, H, W] to features and projections; ``head`` turns features into logits over all classes.

    Features [n, F] that a frozen backbone has made before are taken in the place of its images.
    """

    def __init__(self, config: NetworkConfig, channels: int, num_classes: int) -> None:
        super().__init__()
        backbone = backbones.build(config, channels)
        self.stem, self.blocks = backbone.stem, backbone.blocks
        self.memory_format, self.colors = backbone.memory_format, backbone.colors
        self.frozen = config.frozen
        inputs = backbone.features
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
        backbone.initialize()  # last: recorded results know the order in which random numbers are drawn
        if config.weights is not None:
            weights.load(backbone.module, config)
        self._backbone = (backbone.module,)  # in a tuple: its parts are registered already, by other names
        self.requires_grad_(True)

    def forward(self, images: Tensor) -> Outputs:
        return self.project(self.features(images))

    def features(self, images: Tensor) -> Tensor:
        """From images, or from features that are there already, to features [n, F]."""
        return images if images.ndim == 2 else self.pool(self.blocks(self.stem(self.prepare(images))))

    def project(self, features: Tensor) -> Outputs:
        """From features [n, F] to both outputs."""
        return Outputs(features, self.projector(features))

    def prepare(self, images: Tensor) -> Tensor:
        """Images in the layout that the convolutions are fast in; gray ones as colored, for a backbone of colors."""
        if images.shape[1] < self.colors:
            images = images.expand(-1, self.colors, -1, -1)
        return images.contiguous(memory_format=self.memory_format)

    def pool(self, maps: Tensor) -> Tensor:
        """From the last block's maps [n, F, h, w], or what is pooled already, to features [n, F]."""
        return maps.mean(dim=(2, 3)) if maps.ndim == 4 else maps

    def backbone_state(self) -> dict[str, Tensor]:
        """Return the backbone's weights and buffers by the names that files of weights have."""
        return self._backbone[0].state_dict()

    def requires_grad_(self, requires_grad: bool = True) -> "Network":
        """Let all parts learn, or none; a frozen backbone never does."""
        super().requires_grad_(requires_grad)
        if self.frozen:
            self.stem.requires_grad_(False)
            self.blocks.requires_grad_(False)
        return self

    @property
    def divided(self) -> bool:
        """Whether it is known where BatchNorm is in the backbone: in a stem and residual blocks."""
        return len(self.stem) > 0


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


def emulates(precision: str) -> bool:
    """Return whether this processor is known to lack arithmetic in "bf16" or "fp16": it then takes longer than fp32."""
    look = getattr(torch.cpu, "get_capabilities", dict)  # torch before 2.13 does not tell
    known = [has for name, has in look().items() if name.endswith(precision)]
    return bool(known) and not any(known)


def mask_unseen(logits: Tensor, seen: Tensor) -> Tensor:
    """Logits [n, C], classes outside ``seen`` (bool [C]) at minus infinity: neither trained nor predicted."""
    return logits.masked_fill(~seen, float("-inf"))


def unit_projections(network: Network, images: Tensor) -> Tensor:
    """Return L2-normalized projections [n, D], fp32."""
    return F.normalize(network(images).projections.float(), dim=-1)


def head_logits(network: Network, images: Tensor) -> Tensor:
    """Return logits over all classes [n, C], fp32."""
    return network.head(network(images).features).float()


def nbytes(module: nn.Module) -> int:
    """Bytes of parameters and buffers."""
    return sum(t.numel() * t.element_size() for t in (*module.parameters(), *module.buffers()))
