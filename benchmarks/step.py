"""One training step of NNCSL with ResNet-18 at CIFAR sizes: the feature bank against a copied teacher network.

``python -m nncsl.benchmarks.step [--data-dir DIR]`` alternates steps with both teachers in one process and reports the
ratio of their times and where they go; peak memory is measured in a process of its own for each. Writes
benchmarks/results/step.json. The batch is smaller than the paper's (32 images instead of 256).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from nncsl import accounting, config, engine, methods, networks, optim, passes, teachers
from nncsl.batches import Moment
from nncsl.config import build
from nncsl.data.images import ArrayImages
from nncsl.data.sources import Source
from nncsl.data.tasks import Stream, split_tasks
from nncsl.files import write_text
from nncsl.interruption import Interruption
from nncsl.record.state import RunState
from nncsl.replay import Memory
from nncsl.runs import find_device
from nncsl.steps.transfer import ship
from nncsl.teachers import Surroundings, Teacher
from nncsl.terminal import Reporter
from nncsl.version import versions

from .provenance import current_commit, processor
from .views import quantiles, small_images

RESULTS = Path(__file__).parent / "results" / "step.json"
NORMAL = passes.Passes()
PHASES = ("data", "teacher", "student forward", "losses", "student backward", "optimizer")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m nncsl.benchmarks.step", description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, help="folder with cifar-10-batches-bin (default: tiles of two photos)")
    parser.add_argument("--batch", type=int, default=32, help="unlabeled images per step (default: %(default)s)")
    parser.add_argument("--per-class", type=int, default=1, help="supports per class (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=8, help="steps of each kind (default: %(default)s)")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--out", type=Path, default=RESULTS, help="JSON file to write (default: %(default)s)")
    parser.add_argument(
        "--only", choices=("features", "model"), help="a few steps of one kind, then print its peak memory"
    )
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        if options.only:
            bench = StepBench(options, Path(folder))
            bench.step(options.only)
            bench.step(options.only)
            print(accounting.process_peak(bench.run.device))
            return 0
        report = measure(options, StepBench(options, Path(folder)))
    show(report)
    write_text(options.out, json.dumps(report, indent=1) + "\n")
    return 0


class StepBench:
    """A task of CIFAR-10, by default the last (ten classes seen, eight of them old): network, memory and teacher."""

    def __init__(
        self,
        options: argparse.Namespace,
        folder: Path,
        *,
        task: int = 4,
        how: passes.Passes = NORMAL,
        precision: str = "fp32",
    ) -> None:
        torch.manual_seed(0)
        sets = [f"unlabeled_batch={options.batch}", f"labeled_per_class={options.per_class}", "bank_views=1"]
        sets += ["unlabeled_fraction=1", "labels=8/class", "memory=64", f"device={options.device}"]
        sets += [f"precision={precision}"]
        self.config = config.load("cifar10", map(build.parse_assignment, sets))
        images, self.images = small_images(max(1000, 5 * options.batch), options.data_dir)
        labels = np.arange(len(images)) % 10
        array = ArrayImages(images)
        source = Source("cifar10", array, labels, array, labels, tuple("0123456789"))
        tasks = split_tasks(source, tasks=5, labels=self.config.labels, seed=0)
        device = find_device(options.device)
        self.run = engine.Run(self.config, source, tasks, folder, device, Reporter(5, quiet=True))
        remembered = np.concatenate([np.zeros(0, np.int64), *(earlier.labeled for earlier in tasks[:task])])
        self.state = RunState(task=task, memory=Memory(remembered, labels[remembered]))
        self.setup = engine.set_up(self.run, Stream(source, tasks), self.state.memory, task)
        self.method = methods.build(self.config, source.num_classes).to(device)
        (self.phase,) = self.method.phases(self.setup.task)
        (self.optimizer,) = self.method.begin(self.phase, self.setup.task)
        self.method.mode(self.phase, self.setup.task)
        self.forward = passes.forward(self.method.network, how)
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.steps_done = 0
        self._teachers: dict[str, teachers.Teacher] = {}

    def teacher(self, mode: str) -> teachers.Teacher:
        """Made once; only the copied teacher makes a second network."""
        if mode not in self._teachers:
            config = replace(self.config, teacher_mode=mode)  # type: ignore[arg-type]
            run, task = self.run, self.setup.task
            around = Surroundings(config, "", run.folder, run.device, run.reporter, Interruption())
            self._teachers[mode] = teachers.open_teacher(self.method, around)
            asks = self.method.asks(self.phase, task, self.state.memory)
            self._teachers[mode].begin(asks, self.phase, task, self.setup.render, self.state, None)
        return self._teachers[mode]

    def step(self, mode: str, until: str = PHASES[-1]) -> dict[str, float]:
        """Seconds of each part of one step, the last one being ``until``: the backward pass or the optimizer."""
        # Both teachers on the same views: the bank's, where there is one.
        teacher, pool = self.teacher(mode), self._teachers.get("features", Teacher()).pool(0)
        self.seconds = dict.fromkeys(PHASES, 0.0)
        number = self.steps_done % self.phase.steps
        self.steps_done += 1
        with self.timed("data"):
            now = Moment(0, 0, number, number, pool)
            seen = engine.look(self.method, self.setup, self.phase, now, Teacher(), self._forward)
        with self.timed("teacher"):
            asked = ship(teacher.prepare(seen.batch, whole=False), self.run.device)
            seen = seen._replace(targets=teacher.targets(seen.batch, seen.pixels, asked))
        with self.timed("losses"), networks.autocast(self.config.precision, self.run.device):
            total = self.method.losses(seen).total
        self.seconds["losses"] -= self.seconds["student forward"]  # which was a part of it
        with self.timed("student backward"):
            self.method.zero_grad(set_to_none=True)
            total.backward()
        if until != PHASES[-1]:
            return self.seconds
        with self.timed("optimizer"):
            optim.set_rates([self.optimizer], self.phase.rate(0.0))
            self.optimizer.step()
        return self.seconds

    def _forward(self, pixels: Tensor) -> networks.Outputs:
        with self.timed("student forward"):
            return self.forward(pixels)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        self._synchronize()
        began = time.perf_counter()
        yield
        self._synchronize()
        self.seconds[name] += time.perf_counter() - began

    def _synchronize(self) -> None:
        if self.run.device.type == "cuda":
            torch.cuda.synchronize()


def measure(options: argparse.Namespace, bench: StepBench) -> dict[str, Any]:
    """Both kinds of step in turns; then the peaks, each in its own process."""
    modes = ("features", "model")
    steps: dict[str, list[dict[str, float]]] = {mode: [] for mode in modes}
    for turn in range(options.repeats + 1):
        for mode in modes:
            taken = bench.step(mode)
            if turn:  # the first one warms up
                steps[mode].append(taken)
    ratios = [sum(m.values()) / sum(f.values()) for f, m in zip(steps["features"], steps["model"], strict=True)]
    phases = {mode: {p: float(np.median([s[p] for s in steps[mode]])) for p in PHASES} for mode in modes}
    arguments = ["--batch", options.batch, "--per-class", options.per_class, "--device", options.device]
    arguments += ["--data-dir", options.data_dir] if options.data_dir else []
    peaks = {}
    for mode in modes:
        command = [sys.executable, "-m", "nncsl.benchmarks.step", *map(str, arguments), "--only", mode]
        # Freed memory goes back to the system at once: the resident set shows what is in use, not the heap's holes.
        returned = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
        ended = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, **returned})
        peaks[mode] = int(ended.stdout.split()[-1])
    share = {mode: {p: phases[mode][p] / sum(phases[mode].values()) for p in PHASES} for mode in modes}
    return {
        "command": f"python -m nncsl.benchmarks.step --repeats {options.repeats} --batch {options.batch}"
        + (" --data-dir DATA" if options.data_dir else ""),
        "commit": current_commit(),
        "machine": {"processor": processor(), "cores": os.cpu_count()},
        "versions": versions(),
        "images": bench.images,
        "views": {"large": 2 * options.batch, "small": 2 * options.batch, "supports": 20 * options.per_class},
        "time_model_over_features": quantiles(ratios),
        "share_of_step": share,
        "peak_bytes": peaks,
        "peak_bytes_saved": peaks["model"] - peaks["features"],
        "teacher_weights_bytes": networks.nbytes(bench.method),
    }


def show(report: dict[str, Any]) -> None:
    console = Console()
    table = Table("phase", "features", "model", title="Share of the step's time (medians)")
    for phase in PHASES:
        table.add_row(phase, *(f"{report['share_of_step'][mode][phase]:.1%}" for mode in ("features", "model")))
    console.print(table)
    ratio = "{p50:.2f} ({p10:.2f} to {p90:.2f})".format_map(report["time_model_over_features"])
    console.print(f"A step with a copied teacher takes {ratio} times as long as one with the bank.")
    saved, weights = report["peak_bytes_saved"] / 1e6, report["teacher_weights_bytes"] / 1e6
    console.print(f"The bank's peak memory is {saved:.0f} MB lower (the copy's weights alone: {weights:.0f} MB).")


if __name__ == "__main__":
    raise SystemExit(main())
