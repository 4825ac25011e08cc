"""The first and the last tasks as a method will meet them, before there is any data: images are numbers here."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from nncsl import methods, networks
from nncsl.batches import Draws, Moment
from nncsl.config import Config
from nncsl.data.division import divided
from nncsl.data.tasks import Task
from nncsl.distributed import ALONE
from nncsl.featurebank.codecs import make_codec
from nncsl.methods.base import Asked, Method
from nncsl.planner.measure import Load
from nncsl.planner.sizes import Sizes
from nncsl.replay import Memory
from nncsl.steps import stored
from nncsl.teachers.bank import pool_sizes


def task_and_memory(method: Method, sizes: Sizes, index: int) -> tuple[Task, Memory]:
    """Return a task of the run, by its index from either end, and the memory it would find."""
    config = method.config
    index, counts = range(config.tasks)[index], class_counts(config, sizes.classes)
    tasks_known, start = index + method.remembers_first, sum(counts[:index])
    old, classes = tuple(range(start)), tuple(range(start, start + counts[index]))
    labeled = np.arange(sizes.labeled_per_task)
    known = sizes.labeled_per_task * tasks_known
    remembered = (known if method.remembers_all else min(config.memory, known)) if method.uses_memory else 0
    unlabeled = config.unlabeled_memory if method.uses_memory and index else 0
    memory = Memory(
        ids=len(labeled) + sizes.unlabeled_per_task + np.arange(remembered),
        labels=np.arange(remembered) % max(1, sum(counts[:tasks_known])),
        unlabeled=10**9 + np.arange(unlabeled),
    )
    everything = np.arange(sizes.unlabeled_per_task)
    task = Task(index, classes, labeled, start + labeled % len(classes), everything, old, sizes.classes)
    return replace(task, steps=Draws(task, memory, config).steps_per_epoch, remembered=remembered), memory


def class_counts(config: Config, classes: int) -> tuple[int, ...]:
    """Return how many classes each task will have, one at least."""
    return config.task_sizes or tuple(max(1, count) for count in divided(classes, config.tasks))


def load(method: Method, sizes: Sizes, *, first: bool) -> Load:
    """Return the views of a step of the first task or of a late one; of several phases, the most."""
    late = [-2, -1] if method.config.tasks > 2 else [-1]  # the last one may lack what prepares for others
    loads = []
    for index in [0] if first else late:
        task, memory = task_and_memory(method, sizes, index)
        draws = Draws(task, memory, method.config)
        for number, phase in enumerate(method.phases(task)):
            if type(method).begin is not Method.begin:  # that makes no modules, and a first optimizer imports 100 MB
                methods.begin(method, number, phase, task)
            groups = method.draw(draws, Moment(number, 0, 0, 0)).values()
            small = sum(len(group) for group in groups if group.keys.kind == "small")
            loads.append((sum(map(len, groups)) - small, small))
    frozen = method.config.batchnorm == "freeze-after-first" and not first
    return Load(max(large for large, _ in loads), max(small for _, small in loads), frozen)


def asked(method: Method, sizes: Sizes) -> list[Asked]:
    """Return what the old network is asked in the last task, in the phase that asks most."""
    task, memory = task_and_memory(method, sizes, -1)
    phases = [list(method.asks(phase, task, memory).values()) for phase in method.phases(task)]
    return max(phases, key=lambda asks: rows(method.config, asks))


def rows(config: Config, asks: list[Asked]) -> int:
    """Return how many rows a bank of these answers has."""
    slots = pool_sizes(config, {each.kind for each in asks})
    return sum(len(each.ids) * slots[each.kind] for each in asks)


class StoredRows(NamedTuple):
    """Rows of stored inputs, and bytes of their features."""

    rows: int
    features: int


def inputs(method: Method, sizes: Sizes, ranks: int) -> StoredRows:
    """Return what the last task stores of a frozen backbone's features; nothing where steps see pixels."""
    if ranks > 1 or not stored.storable(method, ALONE):
        return StoredRows(0, 0)
    images = stored.images_by_kind(method.config, *task_and_memory(method, sizes, -1))
    slots = pool_sizes(method.config, images)
    rows = sum(len(ids) * slots[kind] for kind, ids in images.items())
    return StoredRows(rows, rows * make_codec(stored.CODEC, method.network.head.in_features).row_bytes)


def answer_size(method: Method, asks: list[Asked], device: torch.device) -> int:
    """Return the length of an answer."""
    views = method.config.views
    image = torch.zeros(1, len(views.mean), views.large.size, views.large.size, device=device)
    with networks.evaluating(method):
        return asks[0].answer(method, image).shape[1] if asks else 0
