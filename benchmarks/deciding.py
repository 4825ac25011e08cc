"""Who should decide at test time: the head, the remembered neighbors, or both?

``python -m nncsl.benchmarks.deciding RUN ...`` takes finished runs with a memory and tells how many of the test images
are recognized by the method's own prediction (the head), by soft nearest neighbors among the remembered labeled images
(as ``nncsl eval`` has them), by the head where its probability reaches a threshold and the neighbors elsewhere, and by
the mean of both log-probabilities. No training, and nothing is chosen on the test images: thresholds are a fixed list,
each reported; ``chosen`` is the one that recognizes most of the remembered images, each judged by the others. The head
has learned those by heart, so that this choice leans towards the head. Rows are added to, or replaced in,
benchmarks/results/deciding.csv.
"""

import argparse
import json
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from nncsl import evaluation, kernels
from nncsl.data.images import Images
from nncsl.methods.base import unit_projections
from nncsl.runs import Trained, reopen

from .finished import Row, finished, name_of, put, read
from .provenance import current_commit

RESULTS = Path(__file__).parent / "results" / "deciding.csv"
THRESHOLDS = (0.5, 0.7, 0.9, 0.99)
ALWAYS, NEVER = 0.0, 2.0  # as thresholds: the head decides every image, or none
SETTINGS = ("dataset", "method", "teacher_mode", "epochs", "unlabeled_fraction", "memory", "seed")
SHOWN = ("run", "head", "neighbors", *(f"head from {t}" for t in THRESHOLDS), "chosen", "mean of logs", "either")


class Judged(NamedTuple):
    """Probabilities of n images over all classes, [n, C] each, and their labels [n]."""

    head: Tensor
    neighbors: Tensor
    labels: Tensor


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m nncsl.benchmarks.deciding", description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=finished, metavar="RUN", help="folders of finished runs with a memory")
    parser.add_argument("--out", type=Path, default=RESULTS, help="CSV file (default: %(default)s)")
    options = parser.parse_args(argv)
    for folder in options.runs:
        trained = reopen(folder)
        if not len(trained.state.memory.ids):
            parser.error(f"{folder} remembers no labeled images: it has no neighbors to ask")
        put(options.out, decided(folder, trained), "run")
    show(read(options.out, "run").values())
    return 0


def decided(folder: Path, trained: Trained) -> Row:
    """Return one run's row: percent of the test images that each rule recognizes, the mean over tasks."""
    remembered, asked = judged(trained)

    def percent(predicted: Tensor) -> str:
        found = [evaluation.percent(predicted, asked.labels, task.classes) for task in trained.tasks]
        return f"{statistics.mean(known for known in found if known is not None):.1f}"

    threshold = chosen(remembered)
    right = [p.argmax(dim=1) == asked.labels for p in (asked.head, asked.neighbors)]
    return {
        "run": name_of(folder),
        "head": percent(asked.head.argmax(dim=1)),
        "neighbors": percent(asked.neighbors.argmax(dim=1)),
        **{f"head from {each}": percent(by_threshold(asked, each)) for each in THRESHOLDS},
        "chosen": percent(by_threshold(asked, threshold)),
        "chosen threshold": {ALWAYS: "always the head", NEVER: "never the head"}.get(threshold, str(threshold)),
        "mean of logs": percent(by_both(asked)),
        "either": percent(torch.where(right[0] | right[1], asked.labels, -1)),  # what no rule between them exceeds
        "head on the memory": f"{recognized(remembered, ALWAYS):.1f}",
        "neighbors on the memory": f"{recognized(remembered, NEVER):.1f}",
        "remembered": str(len(remembered.labels)),
        **{name: str(getattr(trained.config, name)) for name in SETTINGS},
        "average accuracy": f"{json.loads((folder / 'summary.json').read_text())['average_accuracy']:.1f}",
        "commit": current_commit(),
    }


def judged(trained: Trained) -> tuple[Judged, Judged]:
    """Return what is made of the remembered images, where neighbors are the others alone, and of the test images."""
    config, state, source, _, method, device = trained
    ids = np.unique(state.memory.ids)
    labels, count = torch.from_numpy(source.train_labels[ids]), source.num_classes

    def head(images: Images, ids: np.ndarray) -> Tensor:
        scores = evaluation.answers(method, images, ids, config.views, device, lambda m, pixels: m.predict(pixels))
        return method.probabilities(scores[:, :count].double())  # a finished run has met all classes

    def projections(images: Images, ids: np.ndarray) -> Tensor:
        return evaluation.answers(method, images, ids, config.views, device, unit_projections)

    test = np.arange(len(source.test))
    supports, queries = projections(source.train, ids), projections(source.test, test)
    by_neighbors = kernels.snn(queries, supports, labels, num_classes=count, temperature=config.tau)
    return (
        Judged(head(source.train, ids), by_the_others(supports, labels, count, config.tau), labels),
        Judged(head(source.test, test), by_neighbors.double(), torch.from_numpy(source.test_labels)),
    )


def by_the_others(supports: Tensor, labels: Tensor, num_classes: int, temperature: float) -> Tensor:
    """Return what soft nearest neighbors [m, C] make of each of the unit supports [m, D] without itself."""
    cosines = (supports.double() @ supports.double().T).fill_diagonal_(float("-inf"))
    parts = (cosines / temperature).softmax(dim=1)
    return torch.zeros(len(labels), num_classes, dtype=parts.dtype).index_add_(1, labels, parts)


def by_threshold(judged: Judged, threshold: float) -> Tensor:
    """Return the classes [n]: the head's where its probability reaches the threshold, else the neighbors'."""
    sure, of_head = judged.head.max(dim=1)
    return torch.where(sure >= threshold, of_head, judged.neighbors.argmax(dim=1))


def by_both(judged: Judged) -> Tensor:
    """Return the classes [n] whose log-probabilities, added up, are largest."""
    tiny = torch.finfo(torch.float32).tiny
    return (judged.head.clamp_min(tiny).log() + judged.neighbors.clamp_min(tiny).log()).argmax(dim=1)


def recognized(judged: Judged, threshold: float) -> float:
    """Return the percentage of images that the rule with this threshold recognizes."""
    return 100.0 * float((by_threshold(judged, threshold) == judged.labels).double().mean())


def chosen(remembered: Judged) -> float:
    """Return the threshold that recognizes most remembered images; of equal ones the lowest."""
    return max((ALWAYS, *THRESHOLDS, NEVER), key=lambda threshold: (recognized(remembered, threshold), -threshold))


def show(rows: Iterable[Row]) -> None:
    table = Table(*SHOWN)
    for row in rows:
        table.add_row(*(row[column] for column in SHOWN))
    Console().print(table)


if __name__ == "__main__":
    raise SystemExit(main())
