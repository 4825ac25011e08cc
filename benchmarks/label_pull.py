"""How hard labels pull at the backbone, beside the images without labels.

``python -m nncsl.benchmarks.label_pull --preset P [--set key=value ...] [--data-dir DIR]`` trains a run as it is and
compares, at every step, the two gradients that meet at the features: the head's, weighted by lambda_lin, and that of
everything that comes through the projector. Their ratio says whether lambda_lin suits so many steps and labels:
weights that were best by trial had about 1. Prints for each task the median ratio, and the lambda_lin that would have
made it 1; adds a row to benchmarks/results/label-pull.csv, or replaces that of the same run and seed.
"""

import argparse
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from nncsl import config, methods, runs
from nncsl.config import build
from nncsl.errors import ConfigError
from nncsl.networks import Network
from nncsl.record import checkpoint

from .finished import put
from .provenance import current_commit

RESULTS = Path(__file__).parent / "results" / "label-pull.csv"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m nncsl.benchmarks.label_pull", description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="digits", help="default: %(default)s")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as `nncsl train` takes it")
    parser.add_argument("--seed", type=int, default=100, help="default: %(default)s")
    parser.add_argument("--data-dir", help="where the data set lies")
    parser.add_argument("--out", type=Path, default=RESULTS, help="CSV file (default: %(default)s)")
    options = parser.parse_args(argv)
    given = [{"seed": options.seed}, *map(build.parse_assignment, options.set)]
    given += [{"data_dir": options.data_dir}] if options.data_dir else []
    settings = methods.settled(config.load(options.preset, given))
    if not (methods.METHODS[settings.method].weighs_labels and settings.lambda_lin):
        parser.error(f"lambda_lin = {settings.lambda_lin:g} of {settings.method}: expected a weight that it reads")
    if settings.distillation == "kd":
        parser.error("distillation=kd: expected one that does not come through the head, as the labels do")
    with tempfile.TemporaryDirectory() as folder, watching() as ratios:
        summary = runs.start(settings, Path(folder) / "run", quiet=True)
        saved = checkpoint.load(Path(folder) / "run" / "checkpoint" / "state.pt")
    tasks = divided(ratios, [steps * settings.epochs for steps in saved["state"]["steps"]])
    name = " ".join([options.preset, *options.set])
    row = {"run": name, "seed": str(options.seed), "lambda_lin": f"{settings.lambda_lin:g}"}
    row |= {"ratio by task": " ".join(f"{ratio:.2f}" for ratio in tasks)}
    row |= {"balance": f"{settings.lambda_lin / statistics.median(tasks):.2g}"}
    row |= {"average accuracy": f"{summary['average_accuracy']:.1f}", "commit": current_commit()}
    put(options.out, row, "run", "seed")
    show(row, tasks)
    return 0


@contextmanager
def watching() -> Iterator[list[float]]:
    """Give the list that each backward pass of a network with a head and a projector adds its ratio to."""
    ratios: list[float] = []
    projectors: dict[int, nn.Module] = {}

    def before(module: nn.Module, inputs: Any) -> Any:
        if isinstance(module, Network):
            projectors[id(module.projector)] = module.projector
        if id(module) not in projectors or not torch.is_grad_enabled() or not inputs[0].requires_grad:
            return None
        features: Tensor = inputs[0]
        entering = features.view_as(features)  # what only the projector sees
        through: list[Tensor] = []
        entering.register_hook(lambda gradient: through.append(gradient.detach().float()))

        def at_features(gradient: Tensor) -> None:
            if not through:  # nothing but the head: a step without anything to compare with
                return
            rest = gradient.detach().float() - through.pop()
            if rest.any():  # views that the head does not learn from say nothing
                ratios.append(float(rest.norm() / (gradient.float() - rest).norm()))

        features.register_hook(at_features)
        return (entering,)

    handle = register_module_forward_pre_hook(before)
    try:
        yield ratios
    finally:
        handle.remove()


def divided(ratios: list[float], steps: list[int]) -> list[float]:
    """Return the median ratio of each task, from one ratio a step and the steps of each task."""
    if len(ratios) != sum(steps):
        raise ConfigError(
            f"{len(ratios)} of {sum(steps)} steps had both gradients in one piece: expected all, so every task needs "
            "labels, and steps no micro-batches; choose other settings"
        )
    ends = list(accumulate(steps))
    return [statistics.median(ratios[end - count : end]) for end, count in zip(ends, steps, strict=True)]


def show(row: dict[str, str], tasks: list[float]) -> None:
    table = Table("task", "labels pull, times the rest", "lambda_lin for 1", title=row["run"])
    for number, ratio in enumerate(tasks, 1):
        table.add_row(str(number), f"{ratio:.2f}", f"{float(row['lambda_lin']) / ratio:.2g}")
    console = Console()
    console.print(table)
    console.print(
        f"average accuracy {row['average accuracy']}%; a weight of {row['balance']} would pull as hard as the rest"
    )


if __name__ == "__main__":
    raise SystemExit(main())
