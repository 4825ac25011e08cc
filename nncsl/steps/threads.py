"""How many threads a run on a CPU computes with: a small step is over before a second thread has been woken for it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from nncsl import networks
from nncsl.config import Config
from nncsl.networks import Network

# Multiply-adds of a step's forward pass below which one thread is as fast as two on idle cores, and many times as
# fast beside another busy process, where two wait for each other in every operator (docs/cli.md has the figures).
_SMALL_STEP = 3e8


@contextmanager
def chosen(network: Network, config: Config, device: torch.device) -> Iterator[None]:
    """Compute with one thread inside the block if steps are small; OMP_NUM_THREADS, where it is set, has its way.

    Sums inside operators depend on the number of threads, so the choice is a function of the settings alone: a resumed
    run makes the same one.
    """
    before = torch.get_num_threads()
    if device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ and multiply_adds(network, config) < _SMALL_STEP:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def multiply_adds(network: Network, config: Config) -> float:
    """Return those of a step's forward pass over its unlabeled views."""
    views = config.views
    each = (crop.count * _of_one_image(network, len(views.mean), crop.size) for crop in (views.large, views.small))
    return config.unlabeled_batch * sum(each)


def _of_one_image(network: Network, channels: int, size: int) -> float:
    counted: list[float] = []

    def count(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        weight: Tensor = module.weight  # type: ignore[assignment]
        counted.append(weight.numel() * output.numel() / weight.shape[0])

    hooks = [module.register_forward_hook(count) for module in network.modules() if _multiplies(module)]
    with networks.evaluating(network):
        network(torch.zeros(1, channels, size, size, device=next(network.parameters()).device))
    for hook in hooks:
        hook.remove()
    return sum(counted)


def _multiplies(module: nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    return isinstance(weight, Tensor) and weight.dim() > 1
