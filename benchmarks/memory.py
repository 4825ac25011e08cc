"""Peak memory against time of a training step: the paper's way, the feature bank, micro-batches, recomputation.

``python -m nncsl.benchmarks.memory [--data-dir DIR]`` measures ResNet-18 at CIFAR's sizes with the paper's batch of 256
unlabeled images. Every step runs in a process of its own; the ways take turns, so that times compare. On a CPU the time
compared is that of the process, which others beside it don't lengthen. Rounds that are recorded already are skipped.
Writes benchmarks/results/memory.csv and memory.png.
"""

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from nncsl import accounting, passes
from nncsl.files import write_table
from nncsl.runs import find_device

from .provenance import current_commit
from .step import StepBench

RESULTS = Path(__file__).parent / "results"
FIELDS = (
    *("phase", "supports", "way", "round", "seconds", "cpu_seconds", "activations", "peak", "before"),
    *("device", "threads", "commit"),
)


@dataclass(frozen=True)
class Way:
    """One way to take a step. phase: "later" tasks (BatchNorm frozen, a teacher) or the "first" (BatchNorm trains).

    extra: measured with the smallest number of supports only; on_request: only if --ways names it.
    """

    name: str
    phase: str = "later"
    teacher: str = "features"
    micro_batch: int = 0
    recompute: bool = False
    spill: Any = "device"
    precision: str = "fp32"
    extra: bool = False
    on_request: bool = False


WAYS = (
    Way("the paper's way", teacher="model"),
    Way("features"),
    Way("features, recompute", recompute=True),
    Way("features, micro-batch 32", micro_batch=32),
    Way("features, micro-batch 16", micro_batch=16, extra=True),
    Way("features, micro-batch 64", micro_batch=64, extra=True),
    Way("features, micro-batch 32, recompute", micro_batch=32, recompute=True, extra=True),
    # Without bfloat16 instructions a CPU takes minutes for these: for small batches, or a GPU.
    Way("features, bf16", precision="bf16", extra=True, on_request=True),
    Way("features, micro-batch 32, bf16", micro_batch=32, precision="bf16", extra=True, on_request=True),
    Way("features, recompute, bf16", recompute=True, precision="bf16", extra=True, on_request=True),
    Way("one pass", phase="first", extra=True),
    Way("recompute", phase="first", recompute=True, extra=True),
    Way("micro-batch 32", phase="first", micro_batch=32, extra=True),
    Way("micro-batch 32, spilled to disk", phase="first", micro_batch=32, spill="disk", extra=True),
)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m nncsl.benchmarks.memory", description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, help="folder with cifar-10-batches-bin (default: tiles of two photos)")
    parser.add_argument("--batch", type=int, default=256, help="unlabeled images per step (default: %(default)s)")
    parser.add_argument("--supports", type=int, nargs="+", default=[10, 60], help="labeled images (default: 10 60)")
    parser.add_argument("--rounds", type=int, default=3, help="turns that every way gets (default: %(default)s)")
    parser.add_argument("--ways", nargs="+", metavar="TEXT", help="only ways with these names, or that contain them")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--out", type=Path, help="csv file (default: memory.csv in results, or one beside it)")
    parser.add_argument("--only", type=int, metavar="N", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.only is not None:
        print(json.dumps(take_step(WAYS[options.only], options)))
        return 0
    device = find_device(options.device).type
    if options.out is None:
        other = ("" if device == "cpu" else f"-{device}") + ("" if options.batch == 256 else f"-batch{options.batch}")
        options.out = RESULTS / f"memory{other}.csv"
    rows = list(read(options.out))
    for way, supports, turn in missing(rows, options):
        print(f"round {turn + 1} of {options.rounds}: {way.name}, {supports} supports ...", flush=True)
        rows.append(in_own_process(way, supports, turn, options))
        write_table(options.out, rows, FIELDS)
    show(rows)
    plot(rows, options.out.with_suffix(".png"))
    return 0


def missing(rows: list[dict[str, str]], options: argparse.Namespace) -> Iterator[tuple[Way, int, int]]:
    """What is not recorded yet, the ways taking turns."""
    done = {(row["phase"], row["way"], int(row["supports"]), int(row["round"])) for row in rows}
    if options.ways:
        exact = {way.name for way in WAYS}
        chosen = [way for way in WAYS if any(t == way.name or (t in way.name and t not in exact) for t in options.ways)]
    else:
        chosen = [way for way in WAYS if not way.on_request]
    for turn in range(options.rounds):
        for supports in options.supports:
            for way in chosen:
                wanted = not way.extra or supports == options.supports[0]
                if wanted and (way.phase, way.name, supports, turn) not in done:
                    yield way, supports, turn


def in_own_process(way: Way, supports: int, turn: int, options: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, "-m", "nncsl.benchmarks.memory", "--only", str(WAYS.index(way))]
    command += ["--batch", str(options.batch)]
    command += ["--supports", str(supports), "--device", options.device]
    command += ["--data-dir", str(options.data_dir)] if options.data_dir else []
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode:
        raise SystemExit(f"{way.name} failed:\n{ended.stderr}")
    measured = json.loads(ended.stdout.splitlines()[-1])
    facts = {"phase": way.phase, "supports": supports, "way": way.name, "round": turn}
    return facts | measured | {"commit": current_commit()}


def take_step(way: Way, options: argparse.Namespace) -> dict[str, Any]:
    """One step: its seconds, and bytes at its peak; gradients are not counted as activations."""
    accounting.one_heap()
    # Ten classes are seen in the last task, two in the first.
    options.per_class = max(1, options.supports[0] // (10 if way.phase == "later" else 2))
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", ".")) as name:
        folder = Path(name)
        how = passes.Passes(way.micro_batch, way.recompute, way.spill, folder)
        task = 4 if way.phase == "later" else 0
        bench = StepBench(options, folder, task=task, how=how, precision=way.precision)
        device = bench.run.device
        bench.teacher(way.teacher)  # made before the measurement: its sweep is no part of a step
        accounting.forget_peak(device)
        before = accounting.in_use(device)
        began = time.process_time()
        seconds = bench.step(way.teacher, until="student backward")
        cpu_seconds = time.process_time() - began
        peak = accounting.process_peak(device)
    return {
        "seconds": round(sum(seconds.values()), 3),
        "cpu_seconds": round(cpu_seconds, 3),
        "activations": peak - before - accounting.gradient_bytes(bench.method),
        "peak": peak,
        "before": before,
        "device": device.type,
        "threads": torch.get_num_threads(),
    }


def read(path: Path) -> Iterator[dict[str, str]]:
    if path.exists():
        with path.open(newline="") as file:
            yield from csv.DictReader(file)


@dataclass(frozen=True)
class Cost:
    """Medians over the rounds, and against the first way of the same phase in the same round."""

    way: str
    activations: float
    memory_ratio: float
    time_ratio: float
    rounds: int


def costs(rows: list[dict[str, Any]], phase: str, supports: int) -> list[Cost]:
    """Every way of a phase, beside its first one (the paper's way, or one pass)."""
    own = [row for row in rows if row["phase"] == phase and int(row["supports"]) == supports]
    names = [way.name for way in WAYS if way.phase == phase and any(row["way"] == way.name for row in own)]
    by_round = {(row["way"], int(row["round"])): row for row in own}
    found = []
    for name in names:
        turns = [turn for way, turn in by_round if way == name and (names[0], turn) in by_round]
        pairs = [(by_round[name, turn], by_round[names[0], turn]) for turn in turns]
        if pairs:
            activations = statistics.median(float(row["activations"]) for row, _ in pairs)
            memory = statistics.median(float(row["activations"]) / float(base["activations"]) for row, base in pairs)
            clock = "cpu_seconds" if own[0]["device"] == "cpu" else "seconds"
            ratio = statistics.median(float(row[clock]) / float(base[clock]) for row, base in pairs)
            found.append(Cost(name, activations, memory, ratio, len(pairs)))
    return found


def panels(rows: list[dict[str, Any]]) -> list[tuple[str, str, int]]:
    """Titles, phases and support counts that were measured."""
    kinds = sorted({(row["phase"], int(row["supports"])) for row in rows}, key=lambda k: (k[0] == "first", k[1]))
    return [(f"{'Later tasks' if p == 'later' else 'First task'}, {n} labeled images", p, n) for p, n in kinds]


def show(rows: list[dict[str, Any]]) -> None:
    console = Console()
    for title, phase, supports in panels(rows):
        table = Table("way", "activations", "memory", "time", "rounds", title=f"{title} (ratios to the first line)")
        for cost in costs(rows, phase, supports):
            shown = (f"{cost.activations / 1e6:,.0f} MB", f"{cost.memory_ratio:.3f}", f"{cost.time_ratio:.2f}")
            table.add_row(cost.way, *shown, str(cost.rounds))
        console.print(table)


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Memory against time, one panel per phase and number of supports."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    wanted = panels(rows)
    figure, axes = pyplot.subplots(1, len(wanted), figsize=(4.6 * len(wanted), 4), squeeze=False, sharey=True)
    for axis, (title, phase, supports) in zip(axes[0], wanted, strict=True):
        points = costs(rows, phase, supports)
        for number, cost in enumerate(points):
            place = (cost.time_ratio, cost.activations / 1e6)
            axis.plot(*place, marker="osD^vP*X<>"[number % 10], markersize=7, color="#0b5394" if number else "#b3261e")
            name = cost.way.removeprefix("features, ")
            side, shift = ("right", -8) if cost.time_ratio < 0.95 else ("left", 8)
            axis.annotate(name, place, xytext=(shift, -3), textcoords="offset points", ha=side, fontsize=7.5)
        axis.set(title=title, xlabel=f"time of a step ({points[0].way} = 1)", xlim=(0.4, 2.0), yscale="log")
        axis.set_ylim(150, 6500)
        axis.set_yticks(ticks := (200, 500, 1000, 2000, 5000), [f"{tick:,}" for tick in ticks])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("activations at the peak, MB")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


if __name__ == "__main__":
    raise SystemExit(main())
