"""Accuracy on the test set: eval mode, plain images, no state changed."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from nncsl.data.policy import ViewPolicy
from nncsl.data.sources import Images, Source
from nncsl.data.tasks import Task
from nncsl.data.views import plain
from nncsl.networks import Network, mask_unseen
from nncsl.passes import inference_batch


def answers(
    network: Network,
    images: Images,
    ids: np.ndarray,
    policy: ViewPolicy,
    device: torch.device,
    answer: Callable[[Network, Tensor], Tensor],
) -> Tensor:
    """``answer`` of the network on plain images, on the host: [n, ...]. Modes and statistics stay as they were."""
    was_training = [module.training for module in network.modules()]
    network.eval()
    collected = []
    size = inference_batch(network, policy.large.size)
    with torch.no_grad():
        for start in range(0, len(ids), size):
            batch = images.gather(ids[start : start + size])
            collected.append(
                answer(network, plain(batch.pixels, policy, sizes=batch.sizes, device=device)).float().cpu()
            )
    for module, training in zip(network.modules(), was_training, strict=True):
        module.training = training
    return torch.cat(collected)


def accuracy_by_task(logits: Tensor, labels: Tensor, tasks: tuple[Task, ...], seen: Tensor | None) -> list[float]:
    """Percent correct on each task's classes; ``seen`` bool [C] masks the logits, None leaves all classes possible."""
    predicted = (logits if seen is None else mask_unseen(logits, seen)).argmax(dim=1)
    return [percent(predicted, labels, task.classes) for task in tasks]


def percent(predicted: Tensor, labels: Tensor, classes: tuple[int, ...]) -> float:
    """Percent of the images of these classes that are predicted right."""
    chosen = torch.isin(labels, torch.tensor(classes))
    return 100.0 * (predicted[chosen] == labels[chosen]).double().mean().item()


def test_logits(network: Network, source: Source, policy: ViewPolicy, device: torch.device) -> tuple[Tensor, Tensor]:
    """Logits [n, C] over all classes and labels [n] of the whole test set."""
    logits, _, labels = test_outputs(network, source, policy, device)
    return logits, labels


def test_outputs(
    network: Network, source: Source, policy: ViewPolicy, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits [n, C] over all classes, projections [n, D] and labels [n] of the whole test set, from one pass."""

    def both(net: Network, images: Tensor) -> Tensor:
        outputs = net(images)
        return torch.cat([net.head(outputs.features), outputs.projections], dim=1)

    answered = answers(network, source.test, np.arange(len(source.test)), policy, device, both)
    logits, projections = answered.split([source.num_classes, answered.shape[1] - source.num_classes], dim=1)
    return logits, projections, torch.from_numpy(source.test_labels)
