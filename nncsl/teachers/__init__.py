"""Where the old network's answers come from: a bank of them, a copy of it, or nowhere. One seam, one line a mode.

When a phase begins the student still is the teacher. ``BankTeacher`` uses that moment to write down everything the
teacher will be asked; ``CopiedTeacher`` copies the network, as the paper does.
"""

import copy
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nncsl import accounting, networks
from nncsl.batches import Batch, Group, Pool, Render, ViewKeys, develop, plain_keys, stage
from nncsl.config import Config
from nncsl.data.tasks import Task
from nncsl.distributed import ALONE, Ranks
from nncsl.interruption import Interruption
from nncsl.methods.base import Asked, Method, Phase
from nncsl.passes import answers, in_parts
from nncsl.record.state import RunState
from nncsl.terminal import Reporter


class Surroundings(NamedTuple):
    """What a teacher needs to know of its run."""

    config: Config
    dataset: str  # fingerprint
    folder: Path
    device: torch.device
    reporter: Reporter
    interruption: Interruption
    ranks: Ranks = ALONE


class Teacher:
    """Answers for the old network, from a phase's beginning to the checkpoints about it; this one is never asked."""

    def __init__(self, *_: Any) -> None:
        pass

    def begin(
        self, asks: Mapping[str, Asked], phase: Phase, task: Task, render: Render, state: RunState, saved: Any
    ) -> None:
        """Get ready for a phase. The method's network is the teacher here, unless a checkpoint says it has moved on.

        saved: what :meth:`contents` gave to the checkpoint that the run continues from; None in any other case.
        """

    def pool(self, epoch: int) -> Pool:
        """Return the view slots that steps of this epoch may ask about; makes fresh ones where they are due."""
        return Pool()

    def prepare(self, batch: Batch, *, whole: bool) -> dict[str, Any]:
        """Return what the host can find out for :meth:`targets`, as arrays; whole: also views that are to be rendered.

        Other steps may be going on meanwhile.
        """
        return {}

    def targets(self, batch: Batch, pixels: Mapping[str, Tensor], asked: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return the answers on exactly those views of the batch that were asked about, without gradient.

        asked: what :meth:`prepare` returned, its arrays being tensors of the device now.
        """
        return {}

    def contents(self) -> Any:
        """Return what a checkpoint has to hold for the teacher, if anything."""
        return None

    def kept(self) -> dict[str, int]:
        """Return the bytes of what the teacher answers from, by part: nothing where it is not asked."""
        return {}

    def after_save(self) -> None:
        """Let go of what only older checkpoints needed."""

    def close(self) -> None:
        """End."""


class CopiedTeacher(Teacher):
    """A frozen copy of the method, evaluated at every step: the paper's way."""

    def __init__(self, method: Method, around: Surroundings) -> None:
        self._student, self._around = method, around
        self._copy: Method | None = None
        self._asks: Mapping[str, Asked] = {}

    def begin(
        self, asks: Mapping[str, Asked], phase: Phase, task: Task, render: Render, state: RunState, saved: Any
    ) -> None:
        self._copy, self._asks, self._render = None, asks, render
        if asks:
            self._copy = copy.deepcopy(self._student).eval().requires_grad_(False)
            if saved is not None:
                self._copy.load_state_dict(saved)
            state.peak(teacher=networks.nbytes(self._copy))

    def prepare(self, batch: Batch, *, whole: bool) -> dict[str, Any]:
        """By group: other views than the batch has; or the rows that were asked about, None if that is all of them."""
        found: dict[str, Any] = {}
        for name, asked in self._asks.items():
            if name in batch and asked.kind != batch[name].keys.kind:
                keys = asked_keys(asked, batch[name])
                found[name] = stage(self._render, keys) if whole else keys
            elif name in batch:
                rows = asked_rows(asked, batch[name])
                found[name] = None if rows.all() else np.flatnonzero(rows)
        return found

    def targets(self, batch: Batch, pixels: Mapping[str, Tensor], asked: Mapping[str, Any]) -> dict[str, Tensor]:
        found = {}
        with torch.no_grad():
            if self._around.ranks.units > 1:
                return self._shared_targets(batch, pixels)
            for name, prepared in asked.items():
                if prepared is None:
                    images = pixels[name]
                elif isinstance(prepared, Tensor):
                    images = pixels[name].index_select(0, prepared)
                else:
                    images = develop(self._render, prepared)
                found[name] = self._answer(self._asks[name], images)
        return found

    def _shared_targets(self, batch: Batch, pixels: Any) -> dict[str, Tensor]:
        """Every rank's copy answers for the rank's own rows; all get all answers."""
        found = {}
        for name, asked in self._asks.items():
            if name in batch and asked.kind != batch[name].keys.kind:
                views = {name: Group(asked_keys(asked, batch[name]), None, batch[name].old)}
                shown, rows = self._around.ranks.views(views, self._render), np.ones(len(views[name]), dtype=bool)
            elif name in batch:
                shown, rows = pixels, asked_rows(asked, batch[name])
            else:
                continue
            found[name] = answers(shown, name, rows, partial(self._answer, asked))
        return found

    def contents(self) -> Any:
        return None if self._copy is None else self._copy.state_dict()

    def kept(self) -> dict[str, int]:
        return {} if self._copy is None else {"teacher": accounting.state_bytes(self._copy)}

    def _answer(self, asked: Asked, images: Tensor) -> Tensor:
        config, device = self._around.config, self._around.device
        with networks.autocast(config.precision, device):
            return in_parts(lambda part: asked.answer(self._copy, part), images, config.micro_batch)


def asked_rows(asked: Asked, group: Group) -> np.ndarray:
    """Return which rows of a group were asked about: bool [n]."""
    return np.isin(group.keys.ids, asked.ids)


def asked_keys(asked: Asked, group: Group) -> ViewKeys:
    """Return the views that answer for those rows of a group: themselves, or the plain images that they show."""
    keys = group.keys.rows(asked_rows(asked, group))
    return plain_keys(keys.ids) if asked.kind == "plain" else keys


def open_teacher(method: Method, around: Surroundings) -> Teacher:
    """Return the configured kind of teacher."""
    from nncsl.teachers.bank import BankTeacher

    kinds: dict[str, type[Teacher]] = {"features": BankTeacher, "model": CopiedTeacher, "none": Teacher}
    return kinds[around.config.teacher_mode](method, around)
