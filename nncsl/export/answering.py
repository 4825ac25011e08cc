"""What is exported: pixels in [0, 1] to scores and probabilities of the classes that a run has met."""

import copy
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor, nn

from nncsl import networks
from nncsl.config import NetworkConfig
from nncsl.data.policy import Crop, ViewPolicy
from nncsl.data.sources import dataset_name
from nncsl.networks import Network
from nncsl.use.model import Model
from nncsl.use.restored import Restored
from nncsl.version import __version__


class Head(nn.Module):
    """A network whose head predicts: scores are its logits."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def predict(self, images: Tensor) -> Tensor:
        return networks.head_logits(self.network, images)

    def probabilities(self, scores: Tensor) -> Tensor:
        return scores.softmax(dim=1)


class Answering(nn.Module):
    """float32 pixels [n, C, size, size] in [0, 1] to scores and probabilities, [n, classes] each.

    judge: predicts from normalized images, and has probabilities of its scores; seen: the columns that are classes.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, judge: Any, views: ViewPolicy, seen: tuple[int, ...]) -> None:
        super().__init__()
        self.judge, self.seen = judge, list(seen)
        for name in ("mean", "std"):
            self.register_buffer(name, torch.tensor(getattr(views, name))[:, None, None], persistent=False)

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.judge.predict((pixels - self.mean) / self.std)[:, self.seen]
        return scores, self.judge.probabilities(scores)


def answering(run: Restored) -> Answering:
    """Return what predicts for a run: a network with its head, or the whole method where that takes more."""
    network = run.method.predicting()
    judge: nn.Module = run.method if network is None else Head(copy.deepcopy(network))
    return Answering(judge, run.config.views, run.seen).eval()


def described(model: Model) -> dict[str, Any]:
    """Return what a file says of itself: plain values, for any program."""
    config = model.run.config
    views, channels = config.views, len(config.views.mean)
    return {
        "nncsl": __version__,
        "method": config.method,
        "decides_by": model.decides_by,
        "dataset": dataset_name(config.dataset),
        "classes": list(model.classes),
        "input": {
            "name": "pixels",
            "shape": ["n", channels, views.large.size, views.large.size],
            "what": f"float32, {'RGB' if channels == 3 else 'gray'}, bytes / 255; an image of another size: "
            f"short side to {round(views.large.size * 256 / 224)}, then the center",
            "normalization": {"mean": list(views.mean), "std": list(views.std), "where": "inside: don't apply it"},
        },
        "outputs": {"scores": ["n", len(model.classes)], "probabilities": ["n", len(model.classes)]},
        "network": asdict(replace(config.network, weights=None, weights_sha256=None)),  # all weights are in here
        "columns": list(model.run.seen),
        "all_classes": model.run.method.network.head.out_features,  # of the head: some may be for later
    }


def rebuilt(facts: dict[str, Any], weights: dict[str, Tensor]) -> Answering:
    """Return the network of a description with these weights."""
    size, channels = facts["input"]["shape"][2], facts["input"]["shape"][1]
    settings = facts["network"] | {"blocks": tuple(facts["network"]["blocks"])}
    network = networks.build(NetworkConfig(**settings), channels, facts["all_classes"], seed=0)
    network.load_state_dict(weights)
    views = _plain_views(size, facts["input"]["normalization"])
    return Answering(Head(network), views, tuple(facts["columns"])).eval()


def _plain_views(size: int, normalization: dict[str, Any]) -> ViewPolicy:
    crop = Crop(1, size, (1.0, 1.0))
    return ViewPolicy(crop, crop, mean=tuple(normalization["mean"]), std=tuple(normalization["std"]))
