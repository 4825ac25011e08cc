"""A campaign's curves: how well the unlabeled images are known while training, and each task's accuracy over time."""

from pathlib import Path

import matplotlib

from benchmarks.accuracy import campaign
from benchmarks.accuracy.campaign import Campaign, Record

matplotlib.use("Agg")
from matplotlib import pyplot as plt


def draw(shown: Campaign) -> Path | None:
    """Writes CAMPAIGN.png beside the campaign's results; None where no run recorded its curves."""
    by_run = {run: [r for r in shown.records(run).values() if r.get("curves")] for run in shown.runs}
    by_run = {run: records for run, records in by_run.items() if records}
    if not by_run:
        return None
    columns = min(len(by_run), 4)
    rows = -(-len(by_run) // columns)
    figure = plt.figure(figsize=(3 * columns, 2.4 * (rows + 1)), layout="constrained")
    grid = figure.add_gridspec(rows + 1, columns)
    _unlabeled(figure.add_subplot(grid[0, :]), by_run)
    for place, (run, records) in enumerate(by_run.items()):
        _by_task(figure.add_subplot(grid[1 + place // columns, place % columns]), run, records)
    path = campaign.RESULTS / f"{shown.name}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".new")
    figure.savefig(beside, dpi=80, format="png")
    plt.close(figure)
    beside.replace(path)
    return path


def _unlabeled(axes: plt.Axes, by_run: dict[str, list[Record]]) -> None:
    """The training accuracy on unlabeled images by epoch, mean over seeds; tasks follow each other."""
    for run, records in by_run.items():
        lines = [
            record["curves"]["unlabeled_accuracy"] for record in records if "unlabeled_accuracy" in record["curves"]
        ]
        if lines:
            axes.plot([sum(values) / len(values) for values in zip(*lines, strict=True)], label=run)
    axes.set(xlabel="epoch, tasks one after the other", ylabel="% of unlabeled", title="unlabeled images, training")
    if axes.lines:
        axes.legend(fontsize="x-small", ncols=2)


def _by_task(axes: plt.Axes, run: str, records: list[Record]) -> None:
    """Accuracy on each task's classes among all seen ones, after its own task and after each later one."""
    matrices = [record["summary"]["accuracy_matrix"] for record in records]
    count = len(matrices[0])
    for task in range(len(matrices[0][0])):
        after = range(min(task, count - 1), count)
        means = [sum(matrix[row][task] for matrix in matrices) / len(matrices) for row in after]
        axes.plot([row + 1 for row in after], means, marker=".")
    axes.set(ylim=(0, 100), title=run, xlabel="after task", xticks=range(1, count + 1))
