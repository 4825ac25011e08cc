"""Moments of a run, set up from the project's own parts, for tests that look into a step."""

import numpy as np
import torch

from nncsl import engine, methods, networks, teachers
from nncsl.batches import Batches, Pool
from nncsl.data.tasks import Stream
from nncsl.methods.base import Classes
from nncsl.record.state import RunState
from nncsl.replay import Memory
from nncsl.teachers.bank import Teaching
from nncsl.terminal import Interruption


class SecondTask:
    """Digits at the start of task 2: a network that knows task 1, a memory of it, and both kinds of teacher."""

    def __init__(self, loaded, make_run, name="run"):
        self.config, self.run = loaded, make_run(loaded, name)
        self.stream = Stream(self.run.source, self.run.tasks)
        first, second = self.run.tasks[:2]
        self.state = RunState(task=1, memory=Memory(first.labeled, self.run.source.train_labels[first.labeled]))
        self.task = self.stream.begin(1, self.state.memory.ids, self.state.memory.unlabeled)
        self.classes = Classes(second.classes, first.classes, 10)
        self.network = engine.build_network(loaded, self.run.source).to(self.run.device)
        with torch.no_grad():  # statistics of real images, as after a first task
            self.network.train()
            batches = Batches(first, Memory(), _started(Stream(self.run.source, self.run.tasks)), loaded)
            views = engine.view_renderer(self.run, _started(Stream(self.run.source, self.run.tasks)), 0)
            for step in range(batches.steps_per_epoch):
                self.network(views(batches.draw(0, step, Pool()).large))
        networks.set_mode(self.network, training=True, freeze_batchnorm=loaded.batchnorm != "train")
        self.views = engine.view_renderer(self.run, self.stream, 1)
        self.batches = Batches(self.task, self.state.memory, self.stream, loaded)
        self.method = methods.find(loaded.method)

    def teaching(self):
        c, r = self.config, self.run
        return Teaching(c, r.source, self.network, r.folder, r.device, r.reporter, Interruption(), distills=True)

    def losses(self, network, teacher, epoch, step, pool, forward=None):
        batch = self.batches.draw(epoch, step, pool)
        dtype = next(network.parameters()).dtype
        views = (self.views(keys).to(dtype) for keys in (batch.large, batch.small, batch.supports))
        pixels = teachers.Pixels(*views)
        share = self.method.backbone_share(self.config)
        student = engine.embed(network, forward or network, pixels, batch, self.classes, share)
        targets = teacher.targets(batch, pixels)
        return self.method.losses(student, batch, targets, self.classes, self.config)


def _started(stream):
    stream.begin(0, np.zeros(0, np.int64), np.zeros(0, np.int64))
    return stream
