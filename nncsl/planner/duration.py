"""How long a run takes: the work of every task is counted, what a piece of work takes is measured in a few steps."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from nncsl import config as configs
from nncsl import methods, networks, passes, replay
from nncsl.batches import Draws, Moment
from nncsl.config import Config
from nncsl.data.tasks import Task
from nncsl.methods.base import Method
from nncsl.planner import imagined
from nncsl.planner.sizes import Sizes
from nncsl.replay import Memory
from nncsl.steps import threads

_WITHOUT_GRADIENT = 1 / 3  # of the work of a pass with its backward pass
_LONG = 3600  # seconds from which on somebody may prefer a reduction
# Steps, and seconds of them (or many steps), that an estimate rests on.
_FEW, _SETTLED, _MANY = 3, 2.0, 20
_IMAGES = 32  # of a small step that is measured before there is a run; of large images a quarter


@dataclass(frozen=True)
class Work:
    """What a task has to do, in pixels that go through the network forward and back.

    steps: of all its epochs and phases; views: of an average step; each: an average step's work; between: that of
    sweeps and measurements.
    """

    steps: int
    views: float
    each: float
    between: float

    @property
    def total(self) -> float:
        return self.steps * self.each + self.between


def of_run(config: Config, tasks: Sequence[Task], test_images: int) -> tuple[Work, ...]:
    """Return the work of a run's tasks. The memory that each will find is assumed to be full."""
    method = _narrow(config, tasks[0].num_classes)
    memories = _memories(method, tasks)
    return tuple(_work(method, task, memory, test_images) for task, memory in zip(tasks, memories, strict=True))


def expected(config: Config, sizes: Sizes) -> tuple[Work, ...]:
    """Return the same of data whose size alone is known."""
    method = _narrow(config, sizes.classes)
    pairs = [imagined.task_and_memory(method, sizes, index) for index in range(config.tasks)]
    return tuple(_work(method, task, memory, sizes.test_images) for task, memory in pairs)


def time_left(works: Sequence[Work], task: int, done: int, seconds: float) -> float:
    """Return the seconds that a run still takes after ``done`` steps of a task, if a step there takes ``seconds``."""
    now = works[task]
    rate = seconds / max(now.each, 1.0)
    return max(0, now.steps - done) * seconds + rate * (now.between + sum(work.total for work in works[task + 1 :]))


def words(seconds: float) -> str:
    """Return a time as people say it, no more exactly than it can be known."""
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= 1.5 * length or (unit == "minute" and seconds >= 50):
            count = max(1, round(seconds / length))
            return f"about {count} {unit}{'s' if count > 1 else ''}"
    return "under a minute"


def advice(config: Config, seconds: float) -> str:
    """Return what would be quicker, where a run takes long and something is known."""
    if seconds < _LONG:
        return ""
    small = f"{config.dataset}-small"
    if small in configs.presets():
        return f"; `--preset {small}` takes minutes"
    if config.dataset.startswith("folder:"):
        return "; quicker: --epochs 20, --set network.width=16, smaller --set views.large.size"
    return ""


def measured_rate(config: Config, classes: int, device: torch.device, *, frozen: bool) -> float:
    """Return the seconds that a pixel takes to go through the network forward and back, from a few small steps.

    On a CPU they are seconds of this process, which others that run beside it don't lengthen.
    """
    method = methods.build(config, classes).to(device)
    networks.set_training(method.network, freeze_batchnorm=frozen)
    how = passes.Passes(config.micro_batch, config.recompute)
    forward, size = passes.forward(method.network, how), config.views.large.size
    count = max(2 * config.micro_batch, _IMAGES if size <= 64 else _IMAGES // 4)
    images = torch.randn(count, len(config.views.mean), size, size, device=device)
    taken = []
    with threads.chosen(method.network, config, device):
        for _ in range(_FEW):
            began = _clock(device)
            with networks.autocast(config.precision, device):
                outputs = forward(images)
            loss = outputs.projections.float().square().mean() + outputs.features.float().mean()
            loss.backward()  # type: ignore[no-untyped-call]
            taken.append(_clock(device) - began)
    return min(taken) / (count * size**2)


def _clock(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.process_time() / torch.get_num_threads()


class Outlook:
    """Measures a run's steps and says once, after a few of them, how long all of it will take.

    remaining: the time that is left, in a few words; empty until it is known.
    """

    def __init__(self, config: Config, works: Sequence[Work]) -> None:
        self._config, self._works = config, works
        self._task, self._last, self._began = -1, 0.0, time.monotonic()
        self._seconds, self._steps, self._said = 0.0, 0, False
        self.remaining = ""

    def after_step(self, task: int, done: int) -> str | None:
        """Count a step, the ``done``-th of its task; return what is to be said of the whole run, once."""
        now = time.monotonic()
        if task != self._task:
            self._task, self._seconds, self._steps, self._last = task, 0.0, 0, 0.0
        if self._last:  # a task's first step, and one after a pause, also waited for other things
            self._seconds, self._steps = self._seconds + now - self._last, self._steps + 1
        self._last = now
        if self._steps < _FEW or (self._seconds < _SETTLED and self._steps < _MANY):
            return None
        left = time_left(self._works, task, done, self._seconds / self._steps)
        self.remaining = f"{words(left).removeprefix('about ')} left in all"
        if self._said:
            return None
        self._said = True
        whole = now - self._began + left
        return f"  {words(whole)} for all tasks on this machine{advice(self._config, whole)}"

    def pause(self) -> None:
        """Leave out of the count what has passed since the last step."""
        self._last = 0.0


def _narrow(config: Config, classes: int) -> Method:
    """Return the method around a network of few weights: only its schedule and its batches are asked for."""
    network = replace(config.network, backbone="residual", weights=None, frozen=False, width=1, hidden=1)
    return methods.build(replace(config, network=network), classes)


def _work(method: Method, task: Task, memory: Memory, test_images: int) -> Work:
    config = method.config
    if _is_over(task):
        return Work(0, 0.0, 0.0, 0.0)
    draws = Draws(task, memory, config)
    task = replace(task, steps=draws.steps_per_epoch, remembered=len(memory.ids))
    steps, views, training = 0, 0, 0.0
    between = _WITHOUT_GRADIENT * test_images * config.views.large.size**2
    for number, phase in enumerate(methods.phases(method, task)):
        if type(method).begin is not Method.begin:
            methods.begin(method, number, phase, task)
        batch = method.draw(draws, Moment(number, 0, 0, 0))
        count = phase.epochs * phase.steps
        areas = {name: len(group) * config.views.crop(group.keys.kind).size ** 2 for name, group in batch.items()}
        asks = {name: asked for name, asked in method.asks(phase, task, memory).items() if len(asked.ids)}
        each = float(sum(areas.values()))
        if config.teacher_mode == "model":
            each += _WITHOUT_GRADIENT * sum(areas.get(name, 0) for name in asks)
        if config.teacher_mode == "features":
            refreshed = (phase.epochs - 1) // config.bank_refresh_epochs if config.bank_refresh_epochs else 0
            swept = (
                imagined.rows(config, [asked]) * config.views.crop(asked.kind).size ** 2 for asked in asks.values()
            )
            between += _WITHOUT_GRADIENT * (1 + refreshed) * sum(swept)
        steps, views, training = steps + count, views + count * sum(map(len, batch.values())), training + count * each
    return Work(steps, views / max(1, steps), training / max(1, steps), between)


def _is_over(task: Task) -> bool:
    """Whether it belongs to the run that was continued: then its labels are not known any more."""
    return not len(task.unlabeled) or bool((task.labels < 0).any())


def _memories(method: Method, tasks: Sequence[Task]) -> Iterator[Memory]:
    """Give the memory that each task may find, as large as it can be by then."""
    memory, config = Memory(), method.config
    for task in tasks:
        before = memory
        if method.uses_memory:
            size = len(memory.ids) + len(task.labeled) if method.remembers_all else config.memory
            labels = np.resize(task.classes, len(task.labeled)) if _is_over(task) else task.labels
            memory = replay.update(memory, task.labeled, labels, sorted(task.seen), size, lambda label, ids: ids)
            memory = replay.update_unlabeled(
                memory, task.unlabeled, task.index + 1, config.unlabeled_memory, config.seed
            )
        yield memory if method.remembers_first else before
