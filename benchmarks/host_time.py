"""What the host computes for a full-size CIFAR-10 step of NNCSL with ResNet-18, and what a thread can hide of it.

``python -m nncsl.benchmarks.host_time`` prepares steps of task 5 and packs them for a device. Removed is the device:
what is rendered, learned and updated there, and the starting of those operations, which torch without CUDA has no true
price of (results/step-launches.csv counts them). Also the sweep (the bank holds random rows) and images (random ones).
Times are the thread's own, so that other processes don't count. Then by the clock, in turns with and without the
thread, beside a device that is busy for a while each step (a sleep). Writes results/step-host.json. Before there was a
thread a step took what "off" takes; before there was one buffer every array had a copy of its own, for each of which
a GPU made the host wait. How views were prepared then is no longer in the code: docs/kernels.md has its figures.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nncsl import batches, engine, methods
from nncsl import config as configs
from nncsl.batches import Moment
from nncsl.config import build
from nncsl.data.images import ArrayImages
from nncsl.data.sources import Source
from nncsl.data.tasks import Stream, split_tasks
from nncsl.files import write_text
from nncsl.interruption import Interruption
from nncsl.methods.base import Asked
from nncsl.record.state import RunState
from nncsl.replay import Memory
from nncsl.steps import arrival
from nncsl.steps.ahead import Ahead
from nncsl.steps.transfer import mapped, packed
from nncsl.teachers import Surroundings
from nncsl.teachers.bank import BankTeacher
from nncsl.terminal import Reporter

from .provenance import current_commit, processor

RESULTS = Path(__file__).parent / "results" / "step-host.json"
NOWHERE = torch.device("meta")
SETTINGS = ["labels=25/class", "unlabeled_fraction=1", "bank_views=1", "memory=500"]
IMAGES = 20_000


class HostBench:
    """Task 5 of CIFAR-10 at full size on a device that computes nothing."""

    def __init__(self, folder: Path) -> None:
        self.config = configs.load("cifar10", map(build.parse_assignment, SETTINGS))
        labels = np.arange(IMAGES) % 10
        array = ArrayImages(np.random.default_rng(0).integers(0, 256, (IMAGES, 32, 32, 3), dtype=np.uint8))
        source = Source("random", array, labels, array, labels, tuple("0123456789"))
        tasks = split_tasks(source, tasks=5, labels=self.config.labels, seed=0)
        self.stream = Stream(source, tasks)
        run = engine.Run(self.config, source, tasks, folder, NOWHERE, Reporter(5, quiet=True))
        ids = np.concatenate([task.labeled for task in tasks[:4]])
        self.state = RunState(task=4, memory=Memory(ids, labels[ids]))
        self.setup = engine.set_up(run, self.stream, self.state.memory, 4)
        self.method = methods.build(self.config, 10).to(NOWHERE)
        (self.phase,) = self.method.phases(self.setup.task)
        around = Surroundings(self.config, "", folder, NOWHERE, run.reporter, Interruption())
        self.teacher = BankTeacher(self.method, around)
        self.state.generation, self.state.teacher = None, None
        asks = self.method.asks(self.phase, self.setup.task, self.state.memory)
        rows = {name: asked._replace(answer=random_rows) for name, asked in asks.items()}
        fill(self.teacher, rows, self)
        self.pool = self.teacher.pool(0)

    def moments(self, count: int) -> Iterator[Moment]:
        """Give the first steps of an epoch."""
        return (Moment(0, 0, number, number, self.pool) for number in range(count))

    def prepare(self, now: Moment) -> arrival.Drawn:
        """Do what a thread can do beforehand."""
        return arrival.prepare(self.method, self.setup, self.teacher, now, whole=True)

    def parts(self, now: Moment) -> Iterator[tuple[str, Callable[[], Any]]]:
        """Give each part of the work, by name."""
        batch = self.method.draw(self.setup.draws, now)
        yield "draw", lambda: self.method.draw(self.setup.draws, now)
        yield "views", lambda: [batches.stage(self.setup.render, group.keys) for group in batch.values()]
        yield "bank", lambda: self.teacher.prepare(batch, whole=True)
        yield "notes", lambda: self.method.notes(batch, self.setup.task)
        drawn = self.prepare(now)
        yield "all of it", lambda: self.prepare(now)
        yield "packing", lambda: self.pack(drawn)
        yield "copies one by one", lambda: self.copy_each(drawn)

    def pack(self, drawn: arrival.Drawn) -> int:
        """Do what the main thread still has to: put everything into the one buffer; return its bytes."""
        return packed(arrays_of(drawn), NOWHERE)[0].nbytes

    def copy_each(self, drawn: arrival.Drawn) -> int:
        """Do it as it was done before: a copy of its own for every array; return how many there are."""
        return len([torch.from_numpy(array.copy()) for array in arrays_of(drawn)])


def arrays_of(drawn: arrival.Drawn) -> list[np.ndarray]:
    """Return everything that travels to the device."""
    arrays: list[np.ndarray] = []
    mapped(drawn[2:], lambda array: arrays.append(array))
    return arrays


def random_rows(method: Any, images: Tensor) -> Tensor:
    """Answer with anything."""
    return torch.nn.functional.normalize(torch.randn(len(images), 128), dim=1)


def fill(teacher: BankTeacher, asks: dict[str, Asked], bench: HostBench) -> None:
    """Begin the phase with a bank of random rows."""
    from unittest import mock

    def nothing(keys: Any) -> Tensor:
        return torch.empty(len(keys), 0)

    with mock.patch("nncsl.teachers.bank.fingerprint", lambda _: "random"):
        teacher.begin(asks, bench.phase, bench.setup.task, nothing, bench.state, None)


def thread_seconds(action: Callable[[], Any]) -> tuple[float, Any]:
    """Return what this thread itself took, and the result."""
    began = time.thread_time()
    result = action()
    return time.thread_time() - began, result


def measure(bench: HostBench, count: int) -> dict[str, Any]:
    """Return milliseconds of every part, medians over steps after the first two, and how much is sent."""
    found: dict[str, list[float]] = {}
    for now in bench.moments(count + 2):
        for name, part in bench.parts(now):
            found.setdefault(name, []).append(thread_seconds(part)[0])
    drawn = bench.prepare(next(bench.moments(1)))
    times = {name: round(1e3 * statistics.median(each[2:]), 3) for name, each in found.items()}
    return {"ms": times, "bytes": bench.pack(drawn), "arrays": len(arrays_of(drawn))}


def by_the_clock(bench: HostBench, count: int, busy: float, turns: int) -> dict[str, float]:
    """Return milliseconds a step, with and without the thread, of a device that is busy for some seconds a step.

    The smallest of several turns: other processes only ever add to it.
    """
    found: dict[str, list[float]] = {"off": [], "on": []}
    for _ in range(turns):
        for name, each in found.items():
            with Ahead(on=name == "on") as ahead:
                began = time.perf_counter()
                for drawn in ahead.each(bench.prepare, bench.moments(count)):
                    bench.pack(drawn)
                    time.sleep(busy)
                each.append((time.perf_counter() - began) / count)
    return {name: round(1e3 * min(each), 2) for name, each in found.items()}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m nncsl.benchmarks.host_time", description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=20, help="steps of each kind (default: %(default)s)")
    parser.add_argument(
        "--busy", type=float, nargs="+", default=[0.01, 0.03, 0.1], help="seconds (default: %(default)s)"
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="JSON file to write (default: %(default)s)")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        bench = HostBench(Path(folder))
        report: dict[str, Any] = {
            "command": f"python -m nncsl.benchmarks.host_time --steps {options.steps}",
            "commit": current_commit(),
            "machine": {"processor": processor(), "cores": os.cpu_count()},
            **measure(bench, options.steps),
            "by_the_clock_ms": {
                f"busy {1e3 * busy:.0f} ms": by_the_clock(bench, options.steps // 2, busy, turns=5)
                for busy in options.busy
            },
        }
    write_text(options.out, json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
