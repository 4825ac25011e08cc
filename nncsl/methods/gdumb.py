"""GDumb: keep balanced images while the stream passes; when asked, train a fresh network on them alone."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nncsl import networks, objectives, optim
from nncsl.batches import Batch, Draws, Moment
from nncsl.config import Config
from nncsl.data.rng import stream_key
from nncsl.data.tasks import Task
from nncsl.errors import ConfigError
from nncsl.methods import schedules
from nncsl.methods.base import Losses, Method, Phase, Step
from nncsl.networks import Network
from nncsl.steps.transfer import send


@dataclass(frozen=True)
class GDumbSettings:
    """A fit to the memory: epochs over it, SGD with warm restarts, CutMix.

    epochs: a power of two, so that the last cosine of the rate is complete; 0: the power whose steps come nearest to
    those of the run's other methods. lr, lr_low, lr_first: a cosine's peak and end, and the rate of the first epoch.
    clip: largest norm of the whole gradient. cutmix: in what part of the batches.
    """

    epochs: int = 256
    batch: int = 16
    lr: float = 0.05
    lr_low: float = 0.0005
    lr_first: float = 0.005
    momentum: float = 0.9
    weight_decay: float = 1e-6
    clip: float = 10.0
    cutmix: float = 0.5
    views: Literal["weak", "strong", "support"] = "weak"

    def __post_init__(self) -> None:
        if self.epochs & (self.epochs - 1):
            raise ConfigError(
                f"own.epochs={self.epochs}: expected a power of two, as the rate restarts at 1, 2, 4, 8, ... epochs "
                "and any other number ends at a high rate; e.g. 256, or 0 for about as many steps as other methods have"
            )


class GDumb(Method):
    """Each task begins with its images in the memory and a new network: nothing of the network before survives."""

    Settings: ClassVar[type] = GDumbSettings
    remembers_first: ClassVar[bool] = True
    own: GDumbSettings

    def __init__(self, network: Network, config: Config, own: Any) -> None:
        super().__init__(network, config, own)
        if not config.memory:
            raise ConfigError("memory=0: gdumb learns from the memory alone; use --memory with a larger number")
        if config.memory_selection != "random":
            raise ConfigError(
                f"memory_selection={config.memory_selection}: gdumb fills its memory before it trains a network that "
                "could choose; expected random"
            )

    def phases(self, task: Task) -> list[Phase]:
        own, steps = self.own, math.ceil(task.remembered / self.own.batch)
        epochs = own.epochs or nearest_power(self.config.epochs * task.steps / steps)
        rate = schedules.warm_restarts(epochs, low=own.lr_low / own.lr, first=own.lr_first / own.lr)
        return [Phase("fit", epochs, steps, rate)]

    def begin(self, phase: Phase, task: Task) -> list[torch.optim.Optimizer]:
        seed = stream_key(self.config.seed, "fit", task.index) >> 1  # torch takes 63 bits
        channels, classes = len(self.config.views.mean), self.network.head.out_features
        self.network.load_state_dict(networks.build(self.config.network, channels, classes, seed).state_dict())
        own = self.own
        values = {"lr": own.lr, "momentum": own.momentum, "weight_decay": own.weight_decay}
        groups = [{"params": list(self.network.parameters()), **values}]
        groups = optim.with_backbone_rate(groups, [self.network], self.config)
        return [optim.ClippedSGD(groups, own.clip, **values)]

    def draw(self, draws: Draws, now: Moment) -> Batch:
        ids = draws.in_turn(np.sort(draws.memory.ids), now, self.own.batch, "memory")
        return {"labeled": draws.labeled_views(self.own.views, ids, now, 1)}

    def uncaptured(self) -> str:
        return "gdumb draws its mixed images within a step"

    def losses(self, step: Step) -> Losses:
        images, labels = step.pixels["labeled"], step.labels("labeled")
        mix = draw_mix(images, self.own.cutmix, step.generator("cutmix"))
        logits = self.seen_logits(step.forward(mix.images).features, step.task)
        loss = mix.kept * objectives.lin_loss(logits, labels)
        if mix.kept < 1:
            loss = loss + (1 - mix.kept) * objectives.lin_loss(logits, labels[mix.partners])
        return Losses(loss, {"lin": loss})


class Mix(NamedTuple):
    """Images [n, C, H, W] with a box from their partners [n] pasted in; kept: what part of each image is its own."""

    images: Tensor
    partners: Tensor
    kept: float


def draw_mix(images: Tensor, probability: float, generator: torch.Generator) -> Mix:
    """CutMix: one box for the whole batch, whose area is uniform, at a uniform place; or, otherwise, none."""
    chance, own = torch.rand(2, generator=generator, dtype=torch.float64).tolist()
    height, width = images.shape[2:]
    center = [int(torch.randint(side, (), generator=generator)) for side in (height, width)]
    partners = send(torch.randperm(len(images), generator=generator), images.device)
    if chance >= probability:
        return Mix(images, partners, 1.0)
    return paste(images, partners, box(height, center[0], own), box(width, center[1], own))


def box(side: int, center: int, own: float) -> slice:
    """Return the box's extent along a side of the image, cut off at its border; inside, it has 1 - own of the area."""
    length = int(side * math.sqrt(1 - own))
    start = center - length // 2
    return slice(max(0, start), min(side, start + length))


def paste(images: Tensor, partners: Tensor, rows: slice, columns: slice) -> Mix:
    """Return copies of the images [n, C, H, W] with the partners' pixels in the box; ``kept`` counts what is left."""
    mixed = images.clone()
    mixed[..., rows, columns] = images[partners][..., rows, columns]
    height, width = images.shape[2:]
    return Mix(mixed, partners, 1 - (rows.stop - rows.start) * (columns.stop - columns.start) / (height * width))


def nearest_power(number: float) -> int:
    """Return the power of two, 1 or more, that is nearest; the smaller one of two."""
    below = 1 << max(0, math.floor(number).bit_length() - 1)
    return below if number - below <= 2 * below - number else 2 * below
