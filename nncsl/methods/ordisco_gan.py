"""ORDisCo's generator and discriminator, as in Triple-GAN's second version. Images are in [-1, 1] here."""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm

from nncsl.data.policy import ViewPolicy
from nncsl.errors import ConfigError
from nncsl.methods.ordisco_losses import drift, flat, importance
from nncsl.steps.transfer import constant, send

_SMALLEST = 4  # pixels that the generator begins with


def doublings(size: int) -> int:
    """Return how often 4 pixels are doubled to make ``size``."""
    times = size.bit_length() - _SMALLEST.bit_length()
    if size != _SMALLEST << max(times, 0):
        raise ConfigError(
            f"views.large.size={size}: ordisco's generator doubles 4 pixels, so it makes images of 8, 16, 32, 64, ... "
            "pixels; choose one of these sizes or another method"
        )
    return times


class ConditionalNorm(nn.Module):
    """BatchNorm whose scale and shift are looked up by class."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels, affine=False)
        self.scale, self.shift = nn.Embedding(classes, channels), nn.Embedding(classes, channels)
        nn.init.ones_(self.scale.weight)
        nn.init.zeros_(self.shift.weight)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return self.norm(x) * self.scale(labels)[..., None, None] + self.shift(labels)[..., None, None]


class Doubling(nn.Module):
    """A residual block that doubles the size."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = ConditionalNorm(channels, classes), ConditionalNorm(channels, classes)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.shortcut = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        y = self.conv1(F.interpolate(F.relu(self.norm1(x, labels)), scale_factor=2))
        y = self.conv2(F.relu(self.norm2(y, labels)))
        return y + self.shortcut(F.interpolate(x, scale_factor=2))


class Generator(nn.Module):
    """Noise z [n, latent] and classes [n] to images [n, channels of an image, size, size] in [-1, 1]."""

    def __init__(self, size: int, image_channels: int, channels: int, latent: int, classes: int) -> None:
        super().__init__()
        self.first = nn.Linear(latent, channels * _SMALLEST**2)
        self.blocks = nn.ModuleList(Doubling(channels, classes) for _ in range(doublings(size)))
        self.last = nn.Sequential(
            nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, image_channels, 1), nn.Tanh()
        )

    def forward(self, z: Tensor, labels: Tensor) -> Tensor:
        x = self.first(z).unflatten(1, (-1, _SMALLEST, _SMALLEST))
        for block in self.blocks:
            x = block(x, labels)
        return cast(Tensor, self.last(x))

    def noise(self, count: int, generator: torch.Generator) -> Tensor:
        """Return z [count, latent] from a generator on the host, where the weights are and of their type."""
        weight = self.first.weight
        return send(torch.randn(count, self.first.in_features, generator=generator).to(weight.dtype), weight.device)


class Halving(nn.Module):
    """A residual block that halves the size."""

    def __init__(self, inputs: int, channels: int, *, first: bool) -> None:
        super().__init__()
        self.first = first  # pixels are signed, and their sign matters: no ReLU before the first convolution
        self.conv1 = spectral_norm(nn.Conv2d(inputs, channels, 3, padding=1))
        self.conv2 = spectral_norm(nn.Conv2d(channels, channels, 3, padding=1))
        self.shortcut = spectral_norm(nn.Conv2d(inputs, channels, 1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(x if self.first else F.relu(x))
        y = self.conv2(F.relu(y))
        return F.avg_pool2d(y, 2) + self.shortcut(F.avg_pool2d(x, 2))


class Discriminator(nn.Module):
    """Images [n, channels of an image, size, size] to scores [n, classes]: how real each would be in each class.

    A score is the image's own plus the inner product of its features and the class's embedding (projection). It knows
    which of its weights (the raw ones, before spectral normalization) mattered in earlier tasks, and what they were.
    """

    importance: Tensor
    anchor: Tensor

    def __init__(self, size: int, image_channels: int, channels: int, classes: int) -> None:
        super().__init__()
        inputs = [image_channels] + [channels] * doublings(size)
        self.blocks = nn.Sequential(*(Halving(n, channels, first=not place) for place, n in enumerate(inputs)))
        self.own = spectral_norm(nn.Linear(channels, 1))
        self.embedding = spectral_norm(nn.Linear(channels, classes, bias=False))
        weights = flat(self.parameters()).detach()
        self.register_buffer("importance", torch.zeros_like(weights))  # nothing holds the weights in task 1
        self.register_buffer("anchor", weights)

    def forward(self, images: Tensor) -> Tensor:
        features = F.relu(self.blocks(images)).sum(dim=(2, 3))
        return cast(Tensor, self.own(features) + self.embedding(features))

    def drift(self) -> Tensor:
        """Return how far the weights have moved since they were last consolidated."""
        return drift(flat(self.parameters()), self.anchor, self.importance)

    @torch.no_grad()
    def consolidate(self, images: Tensor, labels: Tensor, tasks: int) -> None:
        """Hold the weights from here on: images of the latest of ``tasks`` and their classes [n] tell which."""
        self.importance.lerp_(importance(self, images, labels), 1 / tasks)  # the mean over tasks
        self.anchor.copy_(flat(self.parameters()))


def to_generated_range(normalized: Tensor, policy: ViewPolicy) -> Tensor:
    """Return normalized images [n, C, H, W] in [-1, 1], as generator and discriminator know them."""
    mean, std = _normalization(policy, normalized)
    return (normalized * std + mean) * 2 - 1


def to_normalized(images: Tensor, policy: ViewPolicy) -> Tensor:
    """Return images in [-1, 1], [n, C, H, W], as the classifier knows them."""
    mean, std = _normalization(policy, images)
    return ((images + 1) / 2 - mean) / std


def _normalization(policy: ViewPolicy, images: Tensor) -> tuple[Tensor, Tensor]:
    mean, std = (constant(v, images.device, images.dtype)[:, None, None] for v in (policy.mean, policy.std))
    return mean, std
