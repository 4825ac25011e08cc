"""What the features of finished runs know, whatever their heads make of it.

``python -m nncsl.benchmarks.probe RUN ...`` fits a logistic regression to the labels of 5,000 training images, on the
final backbone's features, and tells how many of the test images it recognizes; and how many dimensions the
projections of the test images use (their effective rank; 1: all are parallel, the nearest-neighbour losses have
collapsed). Labels that a run never saw are used here: this measures representations, it is no method. Rows are added
to, or replaced in, benchmarks/results/probe.csv.
"""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from nncsl import evaluation
from nncsl.data.rng import permutation, stream_key
from nncsl.methods.base import Method, unit_projections
from nncsl.runs import reopen

from .finished import Row, finished, name_of, put, read
from .provenance import current_commit

RESULTS = Path(__file__).parent / "results" / "probe.csv"
SETTINGS = ("dataset", "method", "optimizer", "batchnorm", "teacher_mode", "epochs", "unlabeled_fraction", "seed")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m nncsl.benchmarks.probe", description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=finished, metavar="RUN", help="folders of finished runs")
    parser.add_argument("--labels", type=int, default=5000, help="training images to fit (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="CSV file (default: %(default)s)")
    options = parser.parse_args(argv)
    for folder in options.runs:
        row = probe(folder, options.labels)
        put(options.out, row, "run")
        print(f"{row['run']}: probed", flush=True)
    show(read(options.out, "run").values())
    return 0


def probe(folder: Path, count: int) -> Row:
    """One run's row."""
    trained = reopen(folder)
    source, method, device = trained.source, trained.method, trained.device
    policy = trained.config.views
    order = permutation(stream_key(0, "probe"), len(source.train_labels))
    known, tested = np.sort(order[:count]), np.arange(len(source.test))
    fitted = evaluation.answers(method, source.train, known, policy, device, features)
    asked = evaluation.answers(method, source.test, tested, policy, device, features)
    projections = evaluation.answers(method, source.test, tested, policy, device, unit_projections)
    accuracy = linear_accuracy(fitted, source.train_labels[known], asked, source.test_labels)
    summary = json.loads((folder / "summary.json").read_text())
    return {
        "run": name_of(folder),
        "average accuracy": f"{summary['average_accuracy']:.1f}",
        "linear probe": f"{accuracy:.1f}",
        "effective rank": f"{effective_rank(projections):.1f}",
        "labels": str(len(known)),
        **{name: str(getattr(trained.config, name)) for name in SETTINGS},
        "commit": current_commit(),
    }


def features(method: Method, images: Tensor) -> Tensor:
    return method.network(images).features


def linear_accuracy(known: Tensor, labels: np.ndarray, asked: Tensor, expected: np.ndarray) -> float:
    """Percent of ``asked`` [m, F] that a logistic regression on ``known`` [n, F] gives its ``expected`` label [m]."""
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
    return 100.0 * float(model.fit(known.numpy(), labels).score(asked.numpy(), expected))


def effective_rank(vectors: Tensor) -> float:
    """exp of the entropy of the shares of [n, D] vectors' second moments: 1 if all are parallel, D if evenly spread."""
    moments = torch.linalg.svdvals(vectors.double()).square()
    shares = moments / moments.sum()
    return float(torch.special.entr(shares).sum().exp())


def show(rows: Iterable[Row]) -> None:
    columns = ("run", "average accuracy", "linear probe", "effective rank")
    table = Table(*columns)
    for row in rows:
        table.add_row(*(row[column] for column in columns))
    Console().print(table)


if __name__ == "__main__":
    raise SystemExit(main())
