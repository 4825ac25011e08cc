"""A step, from what the host draws to what the device sees.

The host's half is a pure function of the moment and of what does not change during a phase, so that it can be done
ahead; all of it then travels to the device in one copy.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nncsl import batches
from nncsl.batches import Batch, Draws, Moment, Render
from nncsl.data.tasks import Stream, Task
from nncsl.distributed import ALONE, Ranks
from nncsl.methods.base import Method, Phase, Step
from nncsl.passes import Forward
from nncsl.steps.transfer import ship
from nncsl.teachers import Teacher


class Setup(NamedTuple):
    """A task that has begun: its images, what is drawn of them, and their pixels; stream: where those come from."""

    task: Task
    draws: Draws
    render: Render
    stream: Stream | None = None
    device: torch.device = torch.device("cpu")
    ranks: Ranks = ALONE


class Drawn(NamedTuple):
    """What the host knows of a step: what was drawn, and in arrays what the device needs of that.

    views: by group, as :func:`batches.stage` returns them; asked: as the teacher prepares it; hidden: true classes of
    unlabeled views, for the curve alone.
    """

    now: Moment
    batch: Batch
    views: dict[str, Any]
    asked: Any
    labels: dict[str, np.ndarray]
    notes: dict[str, np.ndarray]
    hidden: dict[str, np.ndarray]


class Arrived(NamedTuple):
    """A step on the device, and the hidden classes of its unlabeled views, which no loss gets to see."""

    step: Step
    hidden: dict[str, Tensor]


def prepare(method: Method, setup: Setup, teacher: Teacher, now: Moment, *, whole: bool) -> Drawn:
    """Draw a step's batch and prepare everything that the host can know of it; whole: also the views.

    Views take more memory in this form than rendered one group after the other.
    """
    batch = method.draw(setup.draws, now)
    whole = whole and setup.ranks.units == 1  # units render their own shares, when they are asked for
    views = {name: batches.stage(setup.render, group.keys) if whole else group.keys for name, group in batch.items()}
    labels = {name: group.labels.numpy() for name, group in batch.items() if group.labels is not None}
    guessed = [name for name in method.guessed if name in batch and setup.stream is not None]
    hidden = {name: setup.stream.monitor(batch[name].keys.ids) for name in guessed}  # type: ignore[union-attr]
    asked = teacher.prepare(batch, whole=whole)
    return Drawn(now, batch, views, asked, labels, method.notes(batch, setup.task), hidden)


def arrive(method: Method, setup: Setup, phase: Phase, teacher: Teacher, forward: Forward, drawn: Drawn) -> Arrived:
    """Bring a step to the device, render it and ask the teacher: first, as nothing else is held in memory yet."""
    cargo = drawn.views, drawn.asked, drawn.labels, drawn.notes, drawn.hidden
    views, asked, labels, notes, hidden = ship(cargo, setup.device)
    if setup.ranks.units == 1:
        pixels = {name: batches.develop(setup.render, view) for name, view in views.items()}
    else:
        pixels = setup.ranks.views(drawn.batch, setup.render)
    targets = teacher.targets(drawn.batch, pixels, asked)
    seed, memory = method.config.seed, setup.draws.memory
    where = setup.task, phase, drawn.now, seed, forward, setup.render, memory
    return Arrived(Step(drawn.batch, pixels, targets, *where, labels, notes), hidden)


def look(method: Method, setup: Setup, phase: Phase, now: Moment, teacher: Teacher, forward: Forward) -> Step:
    """Return the step of a moment: both halves, one after the other."""
    drawn = prepare(method, setup, teacher, now, whole=setup.device.type != "cpu")
    return arrive(method, setup, phase, teacher, forward, drawn).step
