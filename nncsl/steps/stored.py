"""With a frozen backbone, what a step trains on is its features: stored once for every view, read at every step.

A view is a pure function of its key, and a frozen backbone's features are one of the view. So the loop renders features
instead of pixels, and nothing else has to know: the projector takes them where the network would take images.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nncsl import networks
from nncsl.batches import Pool, ViewKeys, views_per_step
from nncsl.config import Config
from nncsl.data.tasks import Task
from nncsl.distributed import Ranks
from nncsl.featurebank import FeatureBank, fingerprint
from nncsl.featurebank.errors import BankError
from nncsl.interruption import Interrupted
from nncsl.methods.base import Method
from nncsl.passes import inference_batch
from nncsl.record.state import RunState
from nncsl.replay import Memory
from nncsl.steps.arrival import Setup
from nncsl.teachers import Surroundings
from nncsl.teachers.bank import bank_slots, pool_sizes

FOLDER = "inputs"
CODEC = "fp32"  # inputs are not rounded: training from them is training on the views themselves
_ROLES = {"support": "support"}


class Inputs:
    """What steps see; these see the pixels of fresh views, or of those that the teacher has answers to."""

    def begin(self, setup: Setup, state: RunState) -> Setup:
        """Return the task as its steps are to see it."""
        return setup

    def pool(self, epoch: int, asked: Callable[[int], Pool]) -> Pool:
        """Return the view slots of an epoch's steps; asked: those that the teacher has answers to."""
        return asked(epoch)

    def close(self) -> None:
        """End."""


class StoredInputs(Inputs):
    """The backbone's features of as many views as a bank has of an image, in DIR/inputs, made anew for each task."""

    def __init__(self, method: Method, around: Surroundings) -> None:
        self._method, self._around, self._config = method, around, around.config
        self._backbone = fingerprint(method.network.backbone_state())
        self._bank: FeatureBank | None = None

    def begin(self, setup: Setup, state: RunState) -> Setup:
        self._task, self._pixels, self._state = setup.task, setup.render, state
        self._images = images_by_kind(self._config, setup.task, state.memory)
        self._hold(state.epoch)
        return setup._replace(render=self.features)

    def pool(self, epoch: int, asked: Callable[[int], Pool]) -> Pool:
        self._hold(epoch)
        asked(epoch)  # which may renew its answers, on these very views
        return self._pool

    def features(self, keys: ViewKeys) -> Tensor:
        """Return the features [n, F] of views: stored ones, and those of other views as they are needed."""
        assert self._bank is not None
        slots = bank_slots(keys)
        try:
            return self._bank.read(keys.ids, slots, device=self._around.device)
        except KeyError:
            there = self._bank.contains(keys.ids, slots).numpy()
        found = torch.empty(len(keys), self._bank.dim, device=self._around.device)
        found[torch.from_numpy(there)] = self._bank.read(keys.ids[there], slots[there], device=self._around.device)
        found[torch.from_numpy(~there)] = self._compute(keys.rows(~there))
        return found

    def close(self) -> None:
        if self._bank is not None:
            self._bank.close()

    def _hold(self, epoch: int) -> None:
        """Have the features of the epoch's views: still there, there from before an interruption, or made now."""
        every = self._config.bank_refresh_epochs
        sizes = pool_sizes(self._config, self._images)
        self._pool = Pool(sizes, self._images, replaced=epoch // every if every else 0)
        facts = {
            "teacher": self._backbone,
            "task": self._task.index,
            "views": {
                "policy": self._config.views.fingerprint(),
                "seed": self._config.seed,
                "slots": sizes,
                "replaced": self._pool.replaced,
            },
            "dataset": self._around.dataset,
        }
        if self._bank is None:
            self._bank = self._left_behind()
        if self._bank is None or not self._complete(self._bank, facts):
            self._sweep(facts)
        assert self._bank is not None
        self._state.peak(inputs=0 if self._config.bank_residency == "disk" else self._bank.nbytes)

    def _left_behind(self) -> FeatureBank | None:
        """The bank of an interrupted run; None if there is none, or one that can't be trusted: it can be made anew."""
        try:
            return FeatureBank.open(self._path, "a", **self._place)
        except (BankError, FileNotFoundError):
            return None

    def _complete(self, bank: FeatureBank, facts: Mapping[str, Any]) -> bool:
        known = bank.manifest
        rows = sum(len(ids) * self._pool.sizes[kind] for kind, ids in self._images.items())
        return len(bank) == rows and all(getattr(known, name) == value for name, value in facts.items())

    def _sweep(self, facts: Mapping[str, Any]) -> None:
        """Fill a new bank with the features of all views of the pool."""
        self.close()
        self._bank = None
        views = list(self._views())
        for keys in self._around.reporter.track(views, "the backbone's features"):
            if self._around.interruption.requested:
                if self._bank is not None:
                    self._bank.rollback()
                saved = (self._around.folder / "checkpoint" / "state.pt").exists()
                raise Interrupted if saved else KeyboardInterrupt
            features = self._compute(keys)
            if self._bank is None:
                self._bank = FeatureBank.create(
                    self._path, features.shape[1], CODEC, overwrite=True, **self._place, **facts
                )
            self._bank.write(keys.ids, bank_slots(keys), features, role=_ROLES.get(keys.kind, "unlabeled"))
        assert self._bank is not None
        self._bank.commit()

    def _compute(self, keys: ViewKeys) -> Tensor:
        method, device = self._method, self._around.device
        with networks.evaluating(method), networks.autocast(self._config.precision, device):
            return method.network.features(self._pixels(keys)).float()

    def _views(self) -> Iterator[ViewKeys]:
        """Every view of the pool, in batches of one kind and slot over sorted images."""
        for kind, ids in self._images.items():
            batch = inference_batch(self._method.network, self._config.views.crop(kind).size)
            for slot in self._pool.slots(kind):
                for start in range(0, len(ids), batch):
                    part = ids[start : start + batch]
                    yield ViewKeys(kind, part, np.full(len(part), slot))

    @property
    def _path(self) -> Path:
        return self._around.folder / FOLDER

    @property
    def _place(self) -> dict[str, Any]:
        residency = self._config.bank_residency
        return {"residency": residency, "device": self._around.device if residency == "device" else None}


def open_inputs(method: Method, around: Surroundings) -> Inputs:
    """Return what a run's steps see; say so where a frozen backbone will be computed in every step."""
    if storable(method, around.ranks):
        return StoredInputs(method, around)
    if _wanted(around.config):
        why = f"{around.config.method} needs pixels" if not method.sees_features else "ranks share the views"
        around.reporter.say(f"the frozen backbone is computed in every step: {why}")
    return Inputs()


def storable(method: Method, ranks: Ranks) -> bool:
    """Tell whether steps train on stored features: they are asked for, they suffice, and one process runs the steps."""
    return _wanted(method.config) and method.sees_features and ranks.units == 1


def _wanted(config: Config) -> bool:
    return config.network.frozen and config.teacher_mode == "features"


def images_by_kind(config: Config, task: Task, memory: Memory) -> dict[str, np.ndarray]:
    """Return whose views steps may show: by kind, sorted ids."""
    unlabeled = np.union1d(task.unlabeled, memory.unlabeled)
    labeled = np.union1d(task.labeled, memory.ids)
    images = {"large": unlabeled, "small": unlabeled, "support": labeled}
    return {kind: ids for kind, ids in images.items() if len(ids) and views_per_step(config.views, kind)}
