"""A campaign's curves: unlabeled images recognized while training, parts of the loss, and each task's accuracy."""

from collections.abc import Collection
from pathlib import Path

import matplotlib

from ..accuracy import campaign
from ..accuracy.campaign import Campaign
from ..accuracy.records import Record

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from nncsl.files import written_beside

CURVES = {
    "unlabeled_accuracy": "% of unlabeled images recognized",
    "snn": "L_SNN",
    "lin": "L_LIN, the head on labeled images",
    "nnd": "L_NND",
}


def draw(shown: Campaign, only: Collection[str] | None = None) -> Path | None:
    """Writes CAMPAIGN.png beside the campaign's results, of all runs or some; None where none recorded its curves."""
    runs = [run for run in shown.runs if only is None or run in only]
    by_run = {run: [r for r in shown.records(run).values() if r.get("curves")] for run in runs}
    by_run = {run: records for run, records in by_run.items() if records}
    if not by_run:
        return None
    columns = min(len(by_run), 4)
    rows = -(-len(by_run) // columns)
    figure = plt.figure(figsize=(12, 2.4 * (rows + 2)), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=[2, rows], squeeze=False)[:, 0]
    for axes, (curve, title) in zip(above.subplots(2, 2).flat, CURVES.items(), strict=True):
        _by_epoch(axes, by_run, curve, title)
    panels = below.subplots(rows, columns, squeeze=False).flat
    for (run, records), axes in zip(by_run.items(), panels, strict=False):
        _by_task(axes, run, records)
    for axes in panels:  # those left over
        axes.set_axis_off()
    path = campaign.RESULTS / f"{shown.name}.png"
    with written_beside(path) as beside:
        figure.savefig(beside, dpi=80)
    plt.close(figure)
    return path


def _by_epoch(axes: plt.Axes, by_run: dict[str, list[Record]], curve: str, title: str) -> None:
    """One of the journal's columns, mean over seeds; tasks follow each other. Runs without it have no line."""
    for place, (run, records) in enumerate(by_run.items()):
        lines = [record["curves"][curve] for record in records if curve in record["curves"]]
        if lines:
            axes.plot([_mean(values) for values in zip(*lines, strict=True)], label=run, color=f"C{place}")
    axes.set(xlabel="epoch, tasks one after the other", title=title)
    if axes.lines:
        axes.legend(fontsize="x-small", ncols=2)


def _mean(values: tuple[float | None, ...]) -> float:
    """NaN, which draws nothing, where an epoch has no such value."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else float("nan")


def _by_task(axes: plt.Axes, run: str, records: list[Record]) -> None:
    """Accuracy on each task's classes among all seen ones, after its own task and after each later one."""
    matrices = [record["summary"]["accuracy_matrix"] for record in records]
    count = len(matrices[0])
    for task in range(len(matrices[0][0])):
        after = range(min(task, count - 1), count)
        means = [sum(matrix[row][task] for matrix in matrices) / len(matrices) for row in after]
        axes.plot([row + 1 for row in after], means, marker=".")
    axes.set(ylim=(0, 100), title=run, xlabel="after task", xticks=range(1, count + 1))
