"""One training step of NNCSL on one rank and on several, and the same step in torch's DistributedDataParallel.

``python -m nncsl.benchmarks.ranks`` starts processes with one thread each. Throughput: steps on one rank and on all of
them take turns, so that what else the machine does slows both; a row says what a step takes, sends and waits for. The
ratio of CPU times is what the ratio of throughputs would be at best: on a busy machine ranks wait for their turn.
Results: the first step's loss, gradient and running statistics on 1, 2 and 4 ranks against those of one, here and with
DistributedDataParallel, where every rank has a loss of its own over its part of the batch. Writes
benchmarks/results/ranks.json and ranks.csv.
"""

import argparse
import copy
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from nncsl import config, engine, methods, networks
from nncsl.batches import Group, Moment
from nncsl.config import build
from nncsl.data.images import ArrayImages
from nncsl.data.sources import Source
from nncsl.data.tasks import Stream, split_tasks
from nncsl.distributed import Ranks
from nncsl.files import write_table, write_text
from nncsl.methods.base import Step
from nncsl.passes import Passes
from nncsl.replay import Memory
from nncsl.teachers import Teacher
from nncsl.terminal import Reporter
from nncsl.version import versions

from .provenance import current_commit, processor
from .views import small_images

RESULTS = Path(__file__).parent / "results" / "ranks.json"
COUNTS = (1, 2, 4)
POLICIES = {"trains": False, "frozen": True}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m nncsl.benchmarks.ranks", description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2, help="processes of the throughput part (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=48, help="unlabeled images of a step (default: %(default)s)")
    parser.add_argument("--width", type=int, default=48, help="of the network's first block (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="steps of each kind (default: %(default)s)")
    parser.add_argument("--data-dir", type=Path, help="folder with cifar-10-batches-bin (default: tiles of two photos)")
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="JSON file to write; .csv beside (default: %(default)s)"
    )
    options = parser.parse_args(argv)
    load = os.getloadavg()[0]
    report: dict[str, Any] = {
        "command": "python -m nncsl.benchmarks.ranks "
        + " ".join(f"--{name} {getattr(options, name)}" for name in ("ranks", "batch", "width", "repeats")),
        "commit": current_commit(),
        "machine": {"processor": processor(), "cores": os.cpu_count(), "threads of a rank": 1, "load before": load},
        "versions": versions(),
        "throughput": _in_processes(options.ranks, throughput, options),
        "results": _in_processes(max(COUNTS), results, options),
    }
    show(report)
    write_text(options.out, json.dumps(report, indent=1) + "\n")
    columns = ["batchnorm", "ranks", "exact", "step_ms", "cpu_ms", "views_per_second", "ratio"]
    columns += ["cpu_ratio", "bytes_per_step", "waiting_share"]
    write_table(options.out.with_suffix(".csv"), report["throughput"], columns)
    return 0


def _in_processes(count: int, work: Any, options: argparse.Namespace) -> Any:
    """What ``work`` gives on the first of ``count`` processes in one group."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_process, (count, work, options, folder), nprocs=count)
        return json.loads((Path(folder) / "found.json").read_text())


def _process(rank: int, count: int, work: Any, options: argparse.Namespace, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=count)
    groups = {n: dist.new_group(list(range(n))) for n in range(2, count + 1)}
    found = work(rank, groups, options)
    if rank == 0:
        (Path(folder) / "found.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


class Bench:
    """The first task of a small CIFAR-10 run: a method, and the data of its steps."""

    def __init__(self, options: argparse.Namespace, *assignments: str) -> None:
        images, _ = small_images(1000, options.data_dir)
        labels, array = np.arange(len(images)) % 10, ArrayImages(images)
        source = Source("cifar10", array, labels, array, labels, tuple("0123456789"))
        settings = [f"unlabeled_batch={options.batch}", "labels=40/class", "unlabeled_fraction=1.0"]
        settings += [f"network.width={options.width}", *assignments]
        self.config = config.load("cifar10-small", map(build.parse_assignment, settings))
        tasks = split_tasks(source, tasks=5, labels=self.config.labels, seed=0)
        run = engine.Run(self.config, source, tasks, Path(), torch.device("cpu"), Reporter(5, quiet=True))
        self.setup = engine.set_up(run, Stream(source, tasks), Memory(), 0)
        self.method = methods.build(self.config, source.num_classes)
        (self.phase,) = self.method.phases(self.setup.task)

    def look(self, method: methods.Method, ranks: Ranks, number: int, forward: Any) -> Step:
        """Draw and render a step."""
        setup, now = self.setup._replace(ranks=ranks), Moment(0, 0, number, number)
        return engine.look(method, setup, self.phase, now, Teacher(), forward)

    def step(self, method: methods.Method, ranks: Ranks, number: int, forward: Any) -> tuple[Tensor, int]:
        """Compute a step's loss and gradient; return the loss and how many views it saw."""
        method.zero_grad(set_to_none=True)
        seen = self.look(method, ranks, number, forward)
        total = method.losses(seen).total
        total.backward()  # type: ignore[no-untyped-call]
        ranks.sum_gradients()
        return total.detach(), seen.views


def throughput(rank: int, groups: dict[int, Any], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Milliseconds of a step, optimizer included, on one rank and on all; medians over repeats that take turns."""
    bench, rows = Bench(options), []
    for policy, frozen in POLICIES.items():
        kinds = [(1, False), (options.ranks, False), (options.ranks, True)]
        players = [_player(bench, _ranks(rank, count, groups, exact=exact), frozen) for count, exact in kinds]
        found: list[list[dict[str, float]]] = [[] for _ in kinds]
        for _ in range(options.repeats + 1):
            for place, (count, _) in enumerate(kinds):
                dist.barrier()
                if rank < count:
                    found[place].append(next(players[place]))
        for (count, exact), steps in zip(kinds, found, strict=True):
            if rank == 0:
                middle = {key: statistics.median(step[key] for step in steps[1:]) for key in steps[0]}
                rows.append({"batchnorm": policy, "ranks": count, "exact": exact, **middle})
    for row in rows:
        alone = next(other for other in rows if other["batchnorm"] == row["batchnorm"] and other["ranks"] == 1)
        row["ratio"] = row["views_per_second"] / alone["views_per_second"]
        row["cpu_ratio"] = alone["cpu_ms"] / row["cpu_ms"]
    return rows


def _ranks(rank: int, count: int, groups: dict[int, Any], *, exact: bool = False) -> Ranks:
    return Ranks(exact) if count == 1 else Ranks(exact, rank, count, groups[count])


def _player(bench: Bench, ranks: Ranks, frozen: bool) -> Iterator[dict[str, float]]:
    """Take a step whenever it is asked to, and tell what it took."""
    method = copy.deepcopy(bench.method)
    (optimizer,) = methods.begin(method, 0, bench.phase, bench.setup.task)
    networks.set_training(method, freeze_batchnorm=frozen)
    forward = ranks.forward(method.network, Passes())
    for group in optimizer.param_groups:
        group["lr"] = 0.01
    number = 0
    while True:
        before, began, cpu = replace(ranks.traffic), time.perf_counter(), time.process_time()
        _, views = bench.step(method, ranks, number % bench.phase.steps, forward)
        optimizer.step()
        seconds = time.perf_counter() - began
        yield {
            "step_ms": 1e3 * seconds,
            "cpu_ms": 1e3 * (time.process_time() - cpu),
            "views_per_second": views / seconds,
            "bytes_per_step": ranks.traffic.bytes - before.bytes,
            "waiting_share": (ranks.traffic.seconds - before.seconds) / seconds,
        }
        number += 1


def results(rank: int, groups: dict[int, Any], options: argparse.Namespace) -> list[dict[str, Any]]:
    """The first step's loss, gradient and statistics against one rank's, for every count and both ways."""
    bench, rows = Bench(options, "labeled_per_class=4"), []
    for policy, frozen in POLICIES.items():
        alone: dict[str, Tensor] = {}
        for count in COUNTS:
            for way in ("nncsl", "DistributedDataParallel"):
                dist.barrier()
                if rank >= count:
                    continue
                found = _first_step(bench, _ranks(rank, count, groups), frozen, way, groups.get(count))
                alone = alone or found
                apart = {f"{name}_apart": _apart(found[name], alone[name]) for name in ("gradient", "statistics")}
                rows.append({"batchnorm": policy, "ranks": count, "way": way, "loss": found["loss"].item(), **apart})
    return rows


def _first_step(bench: Bench, ranks: Ranks, frozen: bool, way: str, group: Any) -> dict[str, Tensor]:
    method = copy.deepcopy(bench.method)
    networks.set_training(method, freeze_batchnorm=frozen)
    if way == "nncsl" or ranks.alone:
        loss, _ = bench.step(method, ranks, 0, ranks.forward(method.network, Passes()))
    else:
        seen = own_part(method, bench.look(method, Ranks(), 0, method.network), ranks)
        wrapped = DistributedDataParallel(_Losses(method), process_group=group, find_unused_parameters=True)
        loss = wrapped(seen)
        loss.backward()
        loss = ranks.add(loss.detach().clone())() / ranks.count
    gradient = torch.cat([p.grad.flatten() for p in method.parameters() if p.grad is not None])
    buffers = torch.cat([b.flatten().double() for b in method.network.buffers() if b.is_floating_point()])
    return {"loss": loss.detach(), "gradient": gradient, "statistics": buffers}


class _Losses(nn.Module):
    """A method's loss as a module's output, as DistributedDataParallel wants it."""

    def __init__(self, method: methods.Method) -> None:
        super().__init__()
        self.method = method

    def forward(self, step: Step) -> Tensor:
        return self.method.losses(step).total


def own_part(method: methods.Method, step: Step, ranks: Ranks) -> Step:
    """The step as one of several ranks has it that know nothing of each other: every N-th image, in all its views."""
    batch, pixels = {}, {}
    for name, group in step.batch.items():
        views = 2 if name != "small" else len(group) // (len(step.batch["large"]) // 2)
        images = len(group) // views
        rows = (np.arange(views)[:, None] * images + np.arange(ranks.rank, images, ranks.count)).reshape(-1)
        chosen = torch.from_numpy(rows)
        labels = None if group.labels is None else group.labels[chosen]
        batch[name], pixels[name] = Group(group.keys.rows(rows), labels, group.old[rows]), step.pixels[name][chosen]
    known = {name: group.labels for name, group in batch.items() if group.labels is not None}
    notes = {name: torch.from_numpy(values) for name, values in method.notes(batch, step.task).items()}
    return step._replace(batch=batch, pixels=pixels, known=known, notes=notes)


def _apart(found: Tensor, expected: Tensor) -> float:
    return ((found - expected).norm() / expected.norm()).item()


def show(report: dict[str, Any]) -> None:
    console = Console()
    table = Table("BatchNorm", "ranks", "ms a step", "CPU ms", "views/s", "ratio", "by CPU", "MB sent", "waiting")
    for row in report["throughput"]:
        numbers = [f"{row[name]:.0f}" for name in ("step_ms", "cpu_ms", "views_per_second")]
        numbers += [f"{row[name]:.2f}" for name in ("ratio", "cpu_ratio")]
        sent = f"{row['bytes_per_step'] / 1e6:.2f}", f"{row['waiting_share']:.0%}"
        table.add_row(row["batchnorm"], f"{row['ranks']}{' exact' * row['exact']}", *numbers, *sent)
    console.print(table)
    table = Table("BatchNorm", "ranks", "way", "loss", "gradient apart", "statistics apart", title="the first step")
    for row in report["results"]:
        apart = f"{row['gradient_apart']:.1e}", f"{row['statistics_apart']:.1e}"
        table.add_row(row["batchnorm"], str(row["ranks"]), row["way"], f"{row['loss']:.6f}", *apart)
    console.print(table)


if __name__ == "__main__":
    raise SystemExit(main())
