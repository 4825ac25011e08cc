"""What a run is, in its first lines: what is learned, from how much, by which network, and what that may surprise."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from nncsl import methods, networks
from nncsl.config import Config
from nncsl.data import folders
from nncsl.data.sources import Source, own_place
from nncsl.data.tasks import Task

_FEW_LABELS = 4  # of a class; with fewer a name is learned from very little
_FULL_WIDTH = 64


def lines(config: Config, source: Source, tasks: Sequence[Task], method: nn.Module, device: torch.device) -> list[str]:
    """Return the facts, one a line, then warnings."""
    weights = sum(parameter.numel() for parameter in method.parameters())
    threads = f", {counted(torch.get_num_threads(), 'thread')}" if device.type == "cpu" else ""
    facts = {
        "images": f"{len(source.train):,} to train, {len(source.test):,} to test, {_pixels(source)}",
        "labels": _labels(config, tasks),
        "tasks": _tasks(tasks),
        "network": f"{weights:,} weights ({_network(config)})",
        "views": _views(config),
        "device": f"{device}{threads}, {_precision(config, device)}",
        "teacher": _teacher(config),
        "memory": remembered(config),
    }
    shown = [f"  {name:<8} {text}" for name, text in facts.items()]
    return [*shown, *(f"  warning: {text}" for text in warnings([task.classes for task in tasks], source.class_names))]


def warnings(tasks: Sequence[Sequence[int]], names: Sequence[str]) -> list[str]:
    """Return what would otherwise go wrong in silence. tasks: the classes of each; names: of all classes."""
    alone = [(number, names[classes[0]]) for number, classes in enumerate(tasks, 1) if len(classes) == 1]
    if not alone or sum(map(len, tasks)) == 1:
        return []
    which = ", ".join(f"{number} ({name})" for number, name in alone[:3]) + (", ..." if len(alone) > 3 else "")
    return [
        f"one class alone in task {which}: with no other class to tell it from, losses are zero and nothing is "
        "learned, until a memory brings earlier classes back; fewer --tasks give each task more classes"
    ]


def chance(classes: int) -> float:
    """Return percent correct by guessing among so many classes."""
    return 100.0 / max(1, classes)


def counted(number: int, noun: str) -> str:
    """Return "1 label", "2 labels", "5 classes"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}{'es' if noun.endswith('s') else 's'}"


def sizes(tasks: Sequence[int]) -> str:
    """Return how many classes the tasks have: "2 classes each", or "4, 3 and 3 classes"."""
    if len(set(tasks)) == 1:
        return counted(tasks[0], "class") + (" each" if len(tasks) > 1 else "")
    if len(tasks) > 12:
        return f"{min(tasks)} to {max(tasks)} classes each"
    return f"{', '.join(map(str, tasks[:-1]))} and {tasks[-1]} classes"


def labels_of_a_class(labels: np.ndarray) -> str:
    """Return how many labels a class has: "4 of each class", "2 to 5 of a class". labels: of all labeled images."""
    counts = np.unique(labels, return_counts=True)[1] if len(labels) else np.zeros(1, np.int64)
    low, high = int(counts.min()), int(counts.max())
    return f"{low} of each class" if low == high else f"{low} to {high} of a class"


def remembered(config: Config) -> str:
    """Return what the replay memory holds."""
    method = methods.find(config.method)
    if not method.uses_memory:
        return f"none: {config.method} remembers no images"
    if method.remembers_all:
        return "all labeled images"
    more = f" and {config.unlabeled_memory:,} unlabeled ones" if config.unlabeled_memory else ""
    return f"{counted(config.memory, 'labeled image')}{more}" if config.memory else "none"


def _labels(config: Config, tasks: Sequence[Task]) -> str:
    labels = np.concatenate([task.labels for task in tasks])
    labels = labels[labels >= 0]  # those of a continued run's earlier tasks are not known any more
    images = sum(len(task.unlabeled) for task in tasks)
    text = f"{labels_of_a_class(labels)} ({len(labels):,} in all; {images:,} images count as unlabeled)"
    fewest = np.unique(labels, return_counts=True)[1].min() if len(labels) else 0
    few = _own(config) and fewest < _FEW_LABELS
    return text + (f"; few: more with --labels {_FEW_LABELS}/class" if few else "")


def _tasks(tasks: Sequence[Task]) -> str:
    each = sizes([len(task.classes) for task in tasks])
    return f"{len(tasks)} with {each}" if len(tasks) > 1 else f"1 with {each}"


def _network(config: Config) -> str:
    network = config.network
    if network.backbone != "residual":
        return network.backbone + (", frozen" if network.frozen else "")
    text = f"width {network.width}, blocks {list(network.blocks)}, {network.stem} stem"
    full = _own(config) and network.width >= _FULL_WIDTH
    return text + ("; full width: a quicker one with --set network.width=16" if full else "")


def _views(config: Config) -> str:
    views = config.views
    text = f"{views.large.count} of {views.large.size} px and {views.small.count} of {views.small.size} px of an image"
    if not _own(config):
        return text
    kind, path = own_place(config.dataset)
    found = folders.typical_short_side(path) if kind == "folder" and path is not None else None
    measured = f"; the images' short side is about {found} px" if found else ""
    return f"{text}{measured}: other sizes with --set views.large.size=N --set views.small.size=M"


def _precision(config: Config, device: torch.device) -> str:
    slow = device.type == "cpu" and networks.emulates(config.precision)
    return config.precision + ("; this processor only emulates it: fp32 is faster here" if slow else "")


def _teacher(config: Config) -> str:
    return {
        "features": f"features (a bank of the old network's answers, {config.bank_codec})",
        "model": "model (a copy of the old network)",
        "none": "none (no distillation)",
    }[config.teacher_mode]


def _pixels(source: Source) -> str:
    last = np.array([len(source.train) - 1])  # the first ones of a continued run may be gone
    _, height, width, channels = source.train.gather(last).pixels.shape
    return f"one of them {width}x{height} px, {'color' if channels == 3 else 'gray'}"


def _own(config: Config) -> bool:
    """Whether these are the user's own images, for which no preset was made."""
    return bool(own_place(config.dataset)[0])
