"""Every number of the paper's tables: the command that makes it, what was seen here instead, what it takes on a GPU.

``python -m nncsl.benchmarks.paper`` writes the tables of docs/paper.md, from the paper's (nncsl/report/paper.csv), the
records of campaigns, and counted operations: nothing is trained.
"""

import statistics
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils.flop_counter import FlopCounterMode

from nncsl import config, methods, networks
from nncsl.batches import Draws, Moment
from nncsl.config import Config, NetworkConfig, build
from nncsl.data.catalog import KNOWN
from nncsl.files import write_text
from nncsl.methods.base import Method
from nncsl.planner import expected_sizes, imagined
from nncsl.report.paper import rows

from .accuracy import campaign
from .accuracy.records import Record

PAGE = Path(__file__).resolve().parents[1] / "docs" / "paper.md"
# Products per second that training of such networks reaches: a guess, a third of what the makers print (T4: 8.1e12 in
# fp32, A100: 19.5e12 in fp32; with TF32 or half precision both can be several times as fast).
REACHED = {"T4": 2.7e12, "A100": 6.5e12}
TITLES = {
    "main": "CIFAR-10 and CIFAR-100",
    "imagenet100": "ImageNet-100",
    "upper_bound": "All classes at once",
    "ablation": "Components",
    "distillation": "Kinds of distillation",
    "lambda_lin": "Weight of the labels",
    "lambda_nnd": "Weight of the distillation",
    "buffer": "Size of the memory",
    "transfer": "Transfer",
    "replay": "Replay strategies",
    "augmentation": "Views of CCIC",
}
HEADER = "data", "method", "memory", "labels", "what", "paper", "here", "hours on a T4 / A100", "command"
NOTHING_HERE = "needs a GPU"
# Numbers whose reduced run has settings that the paper's table does not state: its campaign and name there.
NAMED_RUNS: dict[tuple[str, ...], tuple[str, str]] = {
    ("main", "cifar10", "xder", "500", "0.8%"): ("cifar10-methods", "xder"),
    ("replay", "cifar10", "nncsl", "", "3%"): ("cifar10-replay", "nncsl"),
    ("replay", "cifar10", "nncsl + 5000 unlabelled", "", "3%"): ("cifar10-replay", "nncsl-unlabeled-5000"),
    ("replay", "cifar10", "ordisco", "", "3%"): ("cifar10-replay", "ordisco"),
}
BANKED = {"nncsl": "nncsl-bank"}  # what the campaigns of bytes call the method that has two teachers
# What the paper's names of variations mean here.
VARIATIONS: dict[str, dict[str, Any]] = {
    "csl+kd": {"method": "nncsl", "distillation": "kd"},
    "csl+feature": {"method": "nncsl", "distillation": "feature"},
    "csl+nnd": {"method": "nncsl"},
    "nncsl + 5000 unlabelled": {"method": "nncsl", "unlabeled_memory": 5000},
    "ccic weak": {"method": "ccic"},
}


class Line(NamedTuple):
    """A number of the paper, and its settings; None: what it was made with is not in this project."""

    row: dict[str, str]
    settings: dict[str, Any] | None

    @property
    def reduced(self) -> str:
        """The preset that has this data set at a size for CPUs; not every one does."""
        return f"{self.row['dataset']}-small"

    @property
    def command(self) -> str:
        """What to type for it, at full size."""
        if self.settings is None:
            return "not here: its views are not described"
        flags = {"method": "--method", "memory": "--memory", "labels": "--labels", "tasks": "--tasks"}
        words = [f"nncsl train --preset {self.row['dataset']} --data-dir DATA"]
        for name, value in self.settings.items():
            words.append(f"{flags[name]} {value}" if name in flags else f"--set {name}={value}")
        return f"`{' '.join(words)}`"


def lines() -> list[Line]:
    """Return the paper's numbers in its order."""
    return [Line(row, _settings(row)) for row in rows()]


def _settings(row: dict[str, str]) -> dict[str, Any] | None:
    name, *assigned = row["method"].split(" lambda_")
    if name == "ccic strong":
        return None
    found = dict(VARIATIONS.get(row["method"], {"method": name}))
    for text in assigned:
        found |= build.parse_assignment(f"lambda_{text}")
    if methods.find(found["method"]).one_task:
        return found
    known = {"labels": row["labels"] or None, "memory": row["memory"] and int(row["memory"])}
    usual = config.load(row["dataset"])
    tasks = int(row["tasks"]) if int(row["tasks"]) != usual.tasks else None
    return found | {key: value for key, value in {**known, "tasks": tasks}.items() if value not in (None, "")}


def value(summary: dict[str, Any], metric: str) -> float | None:
    """Return what a run's summary says of one of the paper's metrics; None: it does not."""
    if metric.startswith("final_accuracy_task"):
        return summary["accuracy_matrix"][-1][int(metric[-1]) - 1]
    return summary.get(metric)


def seen_here(line: Line) -> tuple[str, str]:
    """Return mean and deviation of the seeds recorded on a smaller scale, and by what protocol: a preset or a campaign.

    The protocol of the data set's reduced preset comes first; both are "" where nothing was recorded.
    """
    if line.settings is None or line.reduced not in config.presets():
        return "", ""
    place = NAMED_RUNS.get(tuple(line.row[key] for key in ("table", "dataset", "method", "memory", "labels")))
    if place is not None:
        return _spread(campaign.read(place[0]).records(place[1]).values(), line.row["metric"]), place[0]
    records = _records(line.reduced, tuple(sorted(line.settings.items())))
    if found := _spread(records, line.row["metric"]):
        return found, line.reduced
    name, run = _quick(line.row)
    known = name in campaign.names()
    found = _spread(campaign.read(name).records(run).values(), line.row["metric"]) if known else ""
    return found, name if found else ""


def _spread(records: Iterable[Record], metric: str) -> str:
    values = [v for record in records if (v := value(record["summary"], metric)) is not None]
    if not values:
        return ""
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{spread} ({len(values)})"


def _quick(row: dict[str, str]) -> tuple[str, str]:
    """Return the campaign with a quarter of the steps that may have a number, and its run's name there."""
    if row["table"] == "buffer":
        return "cifar10-ablation", f"memory-{row['memory']}"
    if row["table"] not in ("main", "ablation", "upper_bound"):
        return "", ""
    if row["labels"] in ("0.8%", "") and row["memory"] in ("500", ""):
        return f"{row['dataset']}-quick", row["method"]
    compared = "axes" if row["method"] == "ccic" else "bytes"
    return f"{row['dataset']}-{compared}", f"{row['labels']}-{BANKED.get(row['method'], row['method'])}-{row['memory']}"


@cache
def _records(preset: str, settings: tuple[tuple[str, Any], ...]) -> list[Record]:
    return [
        record
        for seed in range(20)
        if (record := campaign.recorded_as(config.load(preset, [{"seed": seed, **dict(settings)}]))) is not None
    ]


def hours(line: Line) -> str:
    """Return how long the run at full size takes, at the least: the products of its network alone."""
    if line.settings is None:
        return ""
    products = _products(line.row["dataset"], tuple(sorted(line.settings.items())))
    return " / ".join(f"{products / rate / 3600:.2g}" for rate in REACHED.values())


@cache
def _products(preset: str, settings: tuple[tuple[str, Any], ...]) -> float:
    """Multiplications and additions of all steps: forward and backward pass of every view that they show."""
    settled = methods.settled(config.load(preset, [dict(settings)]))
    method = methods.build(settled, KNOWN[settled.dataset].classes)
    sizes = expected_sizes(settled)
    return sum(_of_task(method, settled, *imagined.task_and_memory(method, sizes, t)) for t in range(settled.tasks))


def _of_task(method: Method, settled: Config, task: Any, memory: Any) -> float:
    draws, total = Draws(task, memory, settled), 0.0
    for number, phase in enumerate(method.phases(task)):
        methods.begin(method, number, phase, task)
        shown = method.draw(draws, Moment(number, 0, 0, 0)).values()
        each = sum(len(g) * _of_view(settled.network, settled.views.crop(g.keys.kind).size) for g in shown)
        total += each * phase.epochs * phase.steps
    return total


@cache
def _of_view(network: NetworkConfig, size: int) -> float:
    built = networks.build(network, 3, 10, 0)
    with FlopCounterMode(display=False) as counter:
        outputs = built(torch.zeros(2, 3, size, size))
        (outputs.features.sum() + outputs.projections.sum()).backward()
    return counter.get_total_flops() / 2


def page(text: str) -> str:
    """Return the page with what is made from records anew: everything from the count of numbers on."""
    known = [(line, seen_here(line)) for line in lines()]
    count = sum(bool(seen) for _, (seen, _) in known)
    parts = [text.split("\n**Of ")[0].rstrip() + "\n"]
    parts.append(f"**Of {len(known)} numbers {count} have a value here, on a smaller scale; none at full size.**")
    for table, title in TITLES.items():
        parts += [f"\n## {title}\n", f"| {' | '.join(HEADER)} |", "|---" * len(HEADER) + "|"]
        parts += [f"| {' | '.join(_cells(line, *seen))} |" for line, seen in known if line.row["table"] == table]
    return "\n".join(parts) + "\n"


def _cells(line: Line, seen: str, protocol: str) -> list[str]:
    row = line.row
    printed = row["value"] + (f" ± {row['std']}" if row["std"] else "")
    setting = [row[key] for key in ("dataset", "method", "memory", "labels")]
    here = f"{seen} `{protocol}`" if seen else NOTHING_HERE
    return [*setting, row["metric"].replace("_", " "), printed, here, hours(line), line.command]


if __name__ == "__main__":
    write_text(PAGE, page(PAGE.read_text()))
    print(PAGE)
