"""Moments of a run, set up from the project's own parts, for tests that look into a step; and runs in pieces."""

import os
import signal
from dataclasses import replace

import numpy as np
import torch

from nncsl import engine, methods, networks, teachers
from nncsl.batches import Moment, Pool
from nncsl.data.tasks import Stream
from nncsl.distributed import ALONE
from nncsl.interruption import Interrupted, Interruption
from nncsl.record import checkpoint
from nncsl.record.state import RunState
from nncsl.replay import Memory
from nncsl.teachers import Surroundings


class SecondTask:
    """Digits at the start of task 2: a method that knows task 1's statistics, and a memory of it.

    The memory knows task 2 as well, if the method remembers first. A method that has one task only is at its start.
    """

    def __init__(self, loaded, make_run, name="run", ranks=ALONE):
        self.config, self.run = loaded, replace(make_run(loaded, name), ranks=ranks)
        source, tasks = self.run.source, self.run.tasks
        self.method = methods.build(loaded, source.num_classes).to(self.run.device)
        first = engine.set_up(self.run, Stream(source, tasks), self.remembered(0), 0)
        with torch.no_grad():  # statistics of real images, as after a first task
            self.method.train()
            for step in range(first.task.steps):
                batch = self.method.draw(first.draws, Moment(0, 0, step, step))
                self.method.network(first.render(next(iter(batch.values())).keys))
        index = min(1, len(tasks) - 1)
        self.state = RunState(task=index, memory=self.remembered(index))
        self.setup = engine.set_up(self.run, Stream(source, tasks), self.state.memory, index)
        self.task = self.setup.task
        self.begin(0)

    def begin(self, number):
        """Begin a phase; the earlier ones have to have begun."""
        self.number, self.phase = number, self.method.phases(self.task)[number]
        methods.begin(self.method, number, self.phase, self.task)
        with networks.evaluating(self.method):
            self.method.prepare(self.phase, self.task, self.state.memory, self.setup.render)
        self.method.mode(self.phase, self.task)

    def remembered(self, index):
        """The memory that a task is learned with: all labels."""
        known = self.run.tasks[: index + self.method.remembers_first]
        if not known:
            return Memory()
        return Memory(np.concatenate([task.labeled for task in known]), np.concatenate([task.labels for task in known]))

    @property
    def network(self):
        return self.method.network

    def teacher(self, mode=None):
        """The configured kind of teacher, or another, ready for the task."""
        loaded, run = replace(self.config, teacher_mode=mode or self.config.teacher_mode), self.run
        around = Surroundings(loaded, "", run.folder, run.device, run.reporter, Interruption(), run.ranks)
        opened = teachers.open_teacher(self.method, around)
        opened.begin(self.asks(), self.phase, self.task, self.setup.render, self.state, None)
        return opened

    def asks(self):
        return self.method.asks(self.phase, self.task, self.state.memory)

    def all_asks(self):
        """What is asked in any phase."""
        phases = self.method.phases(self.task)
        return {p.name: asks for p in phases if (asks := self.method.asks(p, self.task, self.state.memory))}

    def now(self, epoch, step, pool=None):
        return Moment(self.number, epoch, step, epoch * self.task.steps + step, pool or Pool())

    def losses(self, method, teacher, epoch=0, step=0, pool=None, forward=None):
        dtype = next(method.parameters()).dtype
        setup = self.setup._replace(render=lambda keys: self.setup.render(keys).to(dtype))
        now = self.now(epoch, step, pool)
        return method.losses(engine.look(method, setup, self.phase, now, teacher, forward or method.network))


def trained_in_pieces(run, monkeypatch, tasks=None):
    """Train with a SIGTERM in every step (or those of some tasks), each time going on from what was saved.

    Returns the method, its state, and where each step was: (task, phase, number).
    """
    declared, places = methods.find(run.config.method), []
    losses = declared.losses

    def stopping(self, step):
        places.append((step.task.index, step.phase.name, step.now.number))
        if tasks is None or step.task.index in tasks:
            os.kill(os.getpid(), signal.SIGTERM)
        return losses(self, step)

    monkeypatch.setattr(declared, "losses", stopping)
    saved = None
    while True:
        try:
            return *engine.train(run, saved), places
        except Interrupted:
            saved = checkpoint.load(run.checkpoint_path)
