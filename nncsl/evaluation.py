"""Accuracy on the test set: eval mode, plain images, no state changed."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from nncsl import accounting, networks
from nncsl.data.policy import ViewPolicy
from nncsl.data.sources import Images, Source
from nncsl.data.tasks import Task
from nncsl.data.views import plain
from nncsl.distributed import ALONE, Ranks
from nncsl.interruption import heed
from nncsl.methods.base import Method, head_logits
from nncsl.networks import mask_unseen
from nncsl.passes import inference_batch

T = TypeVar("T")
Track = Callable[[Sequence[T], str], Iterable[T]]  # items and a caption -> the same items, while progress is shown


def unseen(items: Sequence[T], caption: str) -> Iterable[T]:
    """Give the items and show nothing."""
    return items


def answers(
    method: Method,
    images: Images,
    ids: np.ndarray,
    policy: ViewPolicy,
    device: torch.device,
    answer: Callable[[Any, Tensor], Tensor],
    ranks: Ranks = ALONE,
    track: Track = unseen,
    caption: str = "measuring",
) -> Tensor:
    """Return ``answer(method, pixels)`` on plain images, on the host: [n, ...]. No mode or statistic changes.

    Ranks share the batches, and all get all answers. track, caption: how progress is shown.
    """
    size = inference_batch(method.network, policy.large.size)
    parts = [ids[start : start + size] for start in range(0, max(1, len(ids)), size)]
    own = parts[ranks.rank :: ranks.count]
    found, rows = None, 0
    with networks.evaluating(method):
        for part in track(own, caption):
            heed()
            given = answer(method, plain_images(images, part, policy, device))
            if found is None:
                found = torch.empty(sum(map(len, own)), *given.shape[1:])
            # Into one tensor: a small one per batch, left among the large ones, would tear the heap into holes.
            found[rows : rows + len(part)] = given
            rows += len(part)
            del given
    accounting.return_free_memory()
    return ranks.collect(found, [len(part) for part in parts])


def plain_images(images: Images, ids: np.ndarray, policy: ViewPolicy, device: torch.device) -> Tensor:
    """Return images as evaluation sees them: [n, C, size, size]."""
    batch = images.gather(ids)
    return plain(batch.pixels, policy, sizes=batch.sizes, device=device)


def accuracy_by_task(
    logits: Tensor, labels: Tensor, tasks: tuple[Task, ...], seen: Tensor | None
) -> list[float | None]:
    """Percent correct on each task's classes; ``seen`` bool [C] masks the logits, None leaves all outputs possible."""
    predicted = (logits if seen is None else mask_unseen(logits, seen)).argmax(dim=1)
    return [percent(predicted, labels, task.classes) for task in tasks]


def percent(predicted: Tensor, labels: Tensor, classes: tuple[int, ...]) -> float | None:
    """Percent of the images of these classes that are predicted right; None where there are none."""
    chosen = torch.isin(labels, torch.tensor(classes))
    if not bool(chosen.any()):
        return None
    return 100.0 * (predicted[chosen] == labels[chosen]).double().mean().item()


def seen_accuracy(scores: Tensor, labels: Tensor, tasks: tuple[Task, ...]) -> tuple[float | None, Tensor]:
    """Return percent correct after the last of these tasks, among all their classes, and what was predicted [n].

    None where the test images of a task are gone: that of the others would be another number.
    """
    last = tasks[-1]
    predicted = mask_unseen(scores, torch.from_numpy(last.seen_mask(scores.shape[1]))).argmax(dim=1)
    known = all(percent(predicted, labels, task.classes) is not None for task in tasks)
    return percent(predicted, labels, last.seen) if known else None, predicted


def test_scores(
    method: Method,
    source: Source,
    policy: ViewPolicy,
    device: torch.device,
    ranks: Ranks = ALONE,
    track: Track = unseen,
) -> tuple[Tensor, Tensor]:
    """Return the method's scores [n, C] over all classes and the labels [n] of the whole test set."""
    scores, labels = output_scores(method, source, policy, device, ranks, track)
    return scores[:, : source.num_classes], labels


def output_scores(
    method: Method,
    source: Source,
    policy: ViewPolicy,
    device: torch.device,
    ranks: Ranks = ALONE,
    track: Track = unseen,
) -> tuple[Tensor, Tensor]:
    """Return the same over all outputs of the head, also those that are for classes yet unknown."""
    everything = np.arange(len(source.test))
    scores = answers(method, source.test, everything, policy, device, lambda m, x: m.predict(x), ranks, track)
    return scores, torch.from_numpy(source.test_labels)


def accuracy_ahead(scores: Tensor, labels: Tensor, task: Task) -> float | None:
    """Return percent correct on a task that is still to come, all outputs possible; None where it has no scores."""
    if not bool(torch.isfinite(scores[:, list(task.classes)]).any()):
        return None
    return percent(scores.argmax(dim=1), labels, task.classes)


def untrained_accuracy(
    method: Method,
    source: Source,
    tasks: tuple[Task, ...],
    policy: ViewPolicy,
    device: torch.device,
    ranks: Ranks = ALONE,
    track: Track = unseen,
) -> list[float | None]:
    """Return percent correct on each task by the head before any training: what forward transfer is measured from."""
    everything, caption = np.arange(len(source.test)), "measuring the untrained network"
    logits = answers(method, source.test, everything, policy, device, head_logits, ranks, track, caption)
    return accuracy_by_task(logits, torch.from_numpy(source.test_labels), tasks, seen=None)
