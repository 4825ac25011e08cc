"""Steps of a run on the stand-in device, part by part: what each of them starts, copies and waits for."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from nncsl import engine, methods, networks, passes, teachers
from nncsl.batches import Moment
from nncsl.config import Config
from nncsl.data.sources import Source
from nncsl.data.tasks import Stream, Task
from nncsl.interruption import Interruption
from nncsl.methods.base import Losses
from nncsl.record.state import RunState
from nncsl.replay import Memory
from nncsl.steps import arrival, graphs
from nncsl.steps.divergence import Lookout
from nncsl.teachers import Surroundings
from nncsl.terminal import Reporter

from .stand_in import DEVICE, Watch, standing_in

PARTS = ("arrive", "losses", "update")


class Rehearsal:
    """A task of a run, with all labels of the tasks before it in the memory, on the stand-in device or on another."""

    def __init__(
        self, config: Config, source: Source, tasks: tuple[Task, ...], index: int, folder: Path,
        device: torch.device = DEVICE, phase: int = 0,
    ) -> None:  # fmt: skip
        self.config, self.number, self.device = config, phase, device
        self.run = engine.Run(config, source, tasks, folder, device, Reporter(len(tasks), quiet=True))
        self.stream = Stream(source, tasks)
        with self._standing_in():
            self.method = methods.build(config, source.num_classes).to(device)
            for earlier in range(index):
                self._conclude(earlier)
            memory = self._memory(index)
            self.state = RunState(task=index, memory=memory)
            self.setup = engine.set_up(self.run, self.stream, memory, index, self.method.keeps())
            phases = self.method.phases(self.setup.task)
            for number, self.phase in enumerate(phases[: phase + 1]):
                self.optimizers = methods.begin(self.method, number, self.phase, self.setup.task)
                with networks.evaluating(self.method):
                    self.method.prepare(self.phase, self.setup.task, memory, self.setup.render)
            self.method.mode(self.phase, self.setup.task)
            around = Surroundings(config, "", folder, device, self.run.reporter, Interruption())
            self.teacher = teachers.open_teacher(self.method, around)
            asks = self.method.asks(self.phase, self.setup.task, memory)
            asks = {name: asked for name, asked in asks.items() if len(asked.ids)}
            self.teacher.begin(asks, self.phase, self.setup.task, self.setup.render, self.state, None)
            self.pool = self.teacher.pool(0)
            self.forward = passes.forward(self.method.network, engine.how_to_pass(config, folder))
            self.lookout = Lookout(config, folder, device)
            self.compute = graphs.computation(self.method, torch.amp.GradScaler("cpu", enabled=False), device)

    def step(self, number: int) -> tuple[dict[str, Watch | None], Losses]:
        """Take a step; return what happened in each part of it, and its losses."""
        seen = {}
        with self._standing_in() as seen["arrive"]:
            step, hidden = self.arrive(number)
        with self._standing_in() as seen["losses"]:
            losses = self.compute(step)
        with self._standing_in() as seen["update"]:
            self.lookout.note(losses, 0, 0, 0.0)
            for optimizer in self.optimizers:
                optimizer.step()
            engine.record(self.state, losses, step.batch, hidden, self.stream)
        return seen, losses

    def arrive(self, number: int) -> arrival.Arrived:
        """Return a step on the device."""
        now = Moment(self.number, 0, number, number, self.pool)
        drawn = arrival.prepare(self.method, self.setup, self.teacher, now, whole=True)
        return arrival.arrive(self.method, self.setup, self.phase, self.teacher, self.forward, drawn)

    @contextmanager
    def _standing_in(self) -> Iterator[Watch | None]:
        if self.device != DEVICE:
            yield None
            return
        with standing_in() as watch:
            yield watch

    def _conclude(self, index: int) -> None:
        """End a task in which nothing was learned: methods that keep something of their images keep it."""
        setup = engine.set_up(self.run, self.stream, self._memory(index), index, self.method.keeps())
        for number, phase in enumerate(self.method.phases(setup.task)):
            methods.begin(self.method, number, phase, setup.task)
            with networks.evaluating(self.method):
                self.method.prepare(phase, setup.task, self._memory(index), setup.render)
        with networks.evaluating(self.method):
            self.method.end(setup.task, self._memory(index + 1), setup.render)

    def _memory(self, index: int) -> Memory:
        known = self.run.tasks[: index + self.method.remembers_first]
        if not known or not self.method.uses_memory:
            return Memory()
        count = self.config.unlabeled_memory
        unlabeled = known[0].unlabeled[:count] if index else np.zeros(0, np.int64)
        return Memory(
            np.concatenate([task.labeled for task in known]), np.concatenate([task.labels for task in known]), unlabeled
        )


def totals(seen: Mapping[str, Watch | None], kind: str) -> int:
    """Return how many events of a kind all parts had."""
    return sum(watch.count(kind) for watch in seen.values() if watch is not None)
