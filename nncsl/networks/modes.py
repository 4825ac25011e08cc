"""Train and eval modes of a network's parts, and BatchNorm's statistics."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from nncsl.networks.network import Network

_BatchNorm = nn.modules.batchnorm._BatchNorm


def set_training(module: nn.Module, *, freeze_batchnorm: bool) -> None:
    """Set train mode; frozen BatchNorm uses its running statistics while its weight and bias train on.

    A frozen backbone stays in eval mode. Dropout stays off: what a step computes is a function of the seed alone, also
    where a part of it is computed twice.
    """
    module.train()
    for inner in module.modules():
        if drops(inner) or (freeze_batchnorm and isinstance(inner, _BatchNorm)):
            inner.eval()
        if isinstance(inner, Network) and inner.frozen:
            inner.stem.eval()
            inner.blocks.eval()


def drops(module: nn.Module) -> bool:
    """Tell whether a module drops values at random: torch's Dropout of any kind, timm's DropPath."""
    rate = getattr(module, "p", None) if isinstance(module, nn.modules.dropout._DropoutNd) else None
    rate = getattr(module, "drop_prob", None) if type(module).__name__ == "DropPath" else rate
    return bool(rate)


@torch.no_grad()
def recalibrate(network: nn.Module, batches: Iterable[Tensor]) -> None:
    """Replace BatchNorm's running statistics by the means of those of the batches, each batch counting the same.

    Those of a frozen backbone stay.
    """
    trained = network.projector if isinstance(network, Network) and network.frozen else network
    norms = [module for module in trained.modules() if isinstance(module, _BatchNorm)]
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
