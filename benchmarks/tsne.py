"""Where the test images lie after a run's first and last task: t-SNE of their projections, as a picture.

``python -m nncsl.benchmarks.tsne RUN --out FILE.png`` draws a finished run's recorded projections side by side, as the
run's report has them: points of a class in one color, gray those of classes that were not learned yet.
"""

import argparse
from pathlib import Path

import matplotlib
import numpy as np

from nncsl.files import written_beside
from nncsl.record import folder as run_folder
from nncsl.record.snapshots import Snapshot, read_snapshot
from nncsl.report import projections

from .finished import finished

matplotlib.use("Agg")
from matplotlib import pyplot as plt

_GRAY = "0.8"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m nncsl.benchmarks.tsne", description=__doc__.splitlines()[0])
    parser.add_argument("run", type=finished, metavar="RUN", help="folder of a finished run")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the picture to write")
    options = parser.parse_args(argv)
    draw(options.run, options.out)
    print(options.out)
    return 0


def draw(run: Path, out: Path) -> None:
    """Write the picture."""
    classes = [line["classes"] for line in run_folder.read_tasks(run)["tasks"]]
    tasks = list(dict.fromkeys([0, len(classes) - 1]))
    figure, panels = plt.subplots(1, len(tasks), figsize=(5 * len(tasks), 4.8), layout="constrained", squeeze=False)
    for axes, task in zip(panels.flat, tasks, strict=True):
        snapshot = read_snapshot(run, task)
        if snapshot is not None:
            _scatter(axes, run, task, snapshot, learned={c for each in classes[: task + 1] for c in each})
    with written_beside(out) as beside:
        figure.savefig(beside, dpi=80, format=out.suffix.lstrip(".") or "png")
    plt.close(figure)


def _scatter(axes: plt.Axes, run: Path, task: int, snapshot: Snapshot, learned: set[int]) -> None:
    """Draw one task's points [n, 2], those that were not learned yet first: below the others."""
    found = projections.embedding(run, task, snapshot)
    axes.set(xticks=[], yticks=[], title=f"after task {task + 1}")
    if found is None:
        axes.text(0.5, 0.5, "all projections are alike", ha="center", transform=axes.transAxes)
        return
    points, labels = found
    unknown = ~np.isin(labels, list(learned))
    axes.scatter(points[unknown, 0], points[unknown, 1], s=9, color=_GRAY)
    if unknown.any():
        axes.set_xlabel("gray: classes that were not learned yet")
    for label in np.unique(labels[~unknown]):
        own = points[labels == label]
        axes.scatter(own[:, 0], own[:, 1], s=9, color=_color(label, len(snapshot.class_names)))
        _name(axes, own, snapshot.class_names[label])


def _color(label: int, count: int) -> tuple[float, ...]:
    """Return a class's color, the same after every task."""
    return tuple(plt.get_cmap("tab10" if count <= 10 else "turbo")(label / max(1, count - 1)))


def _name(axes: plt.Axes, points: np.ndarray, name: str) -> None:
    """Write a class's name where most of its points are."""
    box = {"boxstyle": "round,pad=0.15", "color": "white", "alpha": 0.8}
    x, y = np.median(points, axis=0)
    axes.text(x, y, name, ha="center", va="center", weight="bold", bbox=box)


if __name__ == "__main__":
    raise SystemExit(main())
