"""Views per second that networks train at, against the machine's matrix-product and convolution peaks.

``python -m nncsl.benchmarks.throughput [--preset cifar10-small]`` measures forward and backward passes of small
networks at the preset's view sizes and batch, then where a whole step of the preset's own network goes. Writes
benchmarks/results/throughput.json. Every figure is the best of several: what the machine can do when others let it.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from nncsl import config, engine, methods, networks
from nncsl.batches import Moment
from nncsl.config import Config, NetworkConfig
from nncsl.data.images import ArrayImages
from nncsl.data.sources import Source
from nncsl.data.tasks import Stream, split_tasks
from nncsl.files import write_text
from nncsl.networks import Outputs
from nncsl.replay import Memory
from nncsl.teachers import Teacher
from nncsl.terminal import Reporter
from nncsl.version import versions

from .provenance import current_commit, processor
from .views import small_images

RESULTS = Path(__file__).parent / "results" / "throughput.json"
CANDIDATES = [
    NetworkConfig("cifar", 16, (1, 1, 1), 128),
    NetworkConfig("cifar", 8, (1, 1, 1, 1), 128),
    NetworkConfig("imagenet", 48, (1, 1), 128),
    NetworkConfig("imagenet", 32, (1, 1, 1), 128),
    NetworkConfig("imagenet", 32, (1, 1), 128),
]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m nncsl.benchmarks.throughput", description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="cifar10-small", help="whose views, batch and network")
    parser.add_argument("--data-dir", type=Path, help="folder with cifar-10-batches-bin (default: tiles of two photos)")
    parser.add_argument("--repeats", type=int, default=7, help="measurements of each kind (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="JSON file to write (default: %(default)s)")
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    settings = config.load(options.preset)
    report: dict[str, Any] = {
        "command": f"python -m nncsl.benchmarks.throughput --preset {options.preset} --threads {options.threads}",
        "commit": current_commit(),
        "machine": {"processor": processor(), "cores": os.cpu_count(), "threads": options.threads},
        "versions": versions(),
        "peak": peaks(options.repeats),
    }
    peak = max(report["peak"].values())
    report["networks"] = [
        training_rate(settings, n, peak, options.repeats) for n in dict.fromkeys([*CANDIDATES, settings.network])
    ]
    report["step"] = step_parts(settings, options.data_dir, options.repeats)
    show(report)
    write_text(options.out, json.dumps(report, indent=1) + "\n")
    return 0


def best(work: Callable[[], Any], repeats: int) -> float:
    """Seconds of the quickest of ``repeats`` calls, after one that warms up."""
    work()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)


def peaks(repeats: int) -> dict[str, float]:
    """GFLOP/s of a square matrix product and of 3x3 convolutions, channels last."""
    a = torch.randn(1024, 1024)
    found = {"matmul 1024": 2 * 1024**3 / best(lambda: a @ a, repeats) / 1e9}
    for width in (16, 32, 64):
        images = torch.randn(64, width, 32, 32).contiguous(memory_format=torch.channels_last)
        convolution = torch.nn.Conv2d(width, width, 3, padding=1, bias=False)
        convolution = convolution.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        with torch.no_grad():
            seconds = best(lambda: convolution(images), repeats)  # noqa: B023 - called at once
        found[f"conv3x3 {width} channels"] = 2 * 9 * width**2 * 32**2 * 64 / seconds / 1e9
    return found


def training_rate(settings: Config, network_config: NetworkConfig, peak: float, repeats: int) -> dict[str, Any]:
    """Forward and backward over the unlabeled views of a step."""
    network = networks.build(network_config, 3, 10, seed=0)
    kinds = [settings.views.large, settings.views.small]
    views = [torch.randn(crop.count * settings.unlabeled_batch, 3, crop.size, crop.size) for crop in kinds]

    def step() -> None:
        torch.stack([network(images).projections.square().sum() for images in views]).sum().backward()

    with FlopCounterMode(display=False) as counter:
        step()
    seconds, count = best(step, repeats), sum(map(len, views))
    gflops = counter.get_total_flops() / seconds / 1e9
    shape = f"{network_config.stem} stem, width {network_config.width}, blocks {list(network_config.blocks)}"
    per_view = counter.get_total_flops() / count / 1e6
    return {
        "network": shape,
        "views_per_second": count / seconds,
        "mflop_per_view": per_view,
        "gflop_per_second": gflops,
        "share_of_peak": gflops / peak,
    }


def step_parts(settings: Config, data_dir: Path | None, repeats: int) -> dict[str, float]:
    """Milliseconds of the parts of a step in the first task, and the views that it trains on per second."""
    images, _ = small_images(1000, data_dir)
    labels = torch.arange(len(images)).numpy() % 10
    array = ArrayImages(images)
    source = Source("cifar10", array, labels, array, labels, tuple("0123456789"))
    settings = replace(settings, labels="40/class", unlabeled_fraction=1.0)
    tasks = split_tasks(source, tasks=5, labels=settings.labels, seed=0)
    run = engine.Run(settings, source, tasks, Path(), torch.device("cpu"), Reporter(5, quiet=True))
    setup = engine.set_up(run, Stream(source, tasks), Memory(), 0)
    method = methods.build(settings, source.num_classes)
    (phase,) = method.phases(setup.task)
    (optimizer,) = method.begin(phase, setup.task)
    method.mode(phase, setup.task)
    times: dict[str, list[float]] = {part: [] for part in ("views", "forward", "losses", "backward", "optimizer")}
    for _ in range(repeats + 1):
        moments = [time.perf_counter()]
        passed = 0.0

        def forward(pixels: Tensor) -> Outputs:
            nonlocal passed
            began = time.perf_counter()
            outputs = method.network(pixels)
            passed += time.perf_counter() - began
            return outputs

        seen = engine.look(method, setup, phase, Moment(0, 0, 0, 0), Teacher(), forward)
        moments.append(time.perf_counter())
        total = method.losses(seen).total
        moments += [moments[-1] + passed, time.perf_counter()]
        method.zero_grad(set_to_none=True)
        total.backward()
        moments.append(time.perf_counter())
        optimizer.step()
        moments.append(time.perf_counter())
        for part, begin, end in zip(times, moments, moments[1:], strict=False):
            times[part].append(1e3 * (end - begin))
    parts = {f"{part}_ms": min(values[1:]) for part, values in times.items()}
    return {**parts, "views_per_second": seen.views / sum(parts.values()) * 1e3}


def show(report: dict[str, Any]) -> None:
    console = Console()
    console.print("peak GFLOP/s: " + ", ".join(f"{name} {value:.0f}" for name, value in report["peak"].items()))
    table = Table("network", "views/s", "MFLOP/view", "GFLOP/s", "of the peak", title="forward and backward")
    for row in report["networks"]:
        numbers = (row["views_per_second"], row["mflop_per_view"], row["gflop_per_second"])
        table.add_row(row["network"], *(f"{n:.0f}" for n in numbers), f"{row['share_of_peak']:.0%}")
    console.print(table)
    console.print(
        "a step: " + ", ".join(f"{name.replace('_', ' ')} {value:.0f}" for name, value in report["step"].items())
    )


if __name__ == "__main__":
    raise SystemExit(main())
