"""Accuracy against processor time: every run that was tried, and a line through those that nothing cheaper reaches."""

import statistics
from pathlib import Path

import matplotlib

from ..accuracy import point_labels
from ..accuracy.campaign import Campaign
from ..accuracy.point_labels import Labeled
from ..accuracy.tables import CPU_TIME, average_accuracies, on_one_processor

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from nncsl.files import written_beside

BEST, OTHERS = "#0072B2", "#595959"


def draw(shown: Campaign, path: Path) -> Path | None:
    """Write the figure of a campaign; None where fewer than two runs of one processor have their time."""
    tried = points(shown)
    if len(tried) < 2:
        return None
    best = [point for point in tried if point.color == BEST]
    rest = [point for point in tried if point.color == OTHERS]
    with plt.rc_context({"svg.hashsalt": "nncsl", "svg.fonttype": "path", "font.size": 10}):
        figure = plt.figure(figsize=(7.5, 4.5), layout="constrained")
        axes = figure.subplots()
        for these, marker, line, color in ((best, "o", "-", BEST), (rest, "x", "", OTHERS)):
            axes.plot([p.x for p in these], [p.y for p in these], marker=marker, linestyle=line, color=color)
        axes.set(xlabel="processor seconds of a run, one thread", ylabel="average accuracy, %", title=shown.title)
        axes.margins(x=0.2, y=0.15)
        axes.grid(color="#e0e0e0", linewidth=0.6)
        axes.set_axisbelow(True)
        figure.canvas.draw()
        figure.set_layout_engine("none")
        point_labels.write(axes, tried)
        with written_beside(path) as beside:
            figure.savefig(beside, format="svg", metadata={"Date": None})
        plt.close(figure)
    return path


def points(shown: Campaign) -> list[Labeled]:
    """Return the runs with their time, the quickest first; those that nothing cheaper reaches in another color.

    Time is that of the processor that made most of them, accuracy the mean of the seeds made there.
    """
    (seconds,) = on_one_processor(shown, CPU_TIME).values()
    found = []
    for run in shown.runs:
        records = {seed: r for seed, r in shown.records(run).items() if seconds(r) is not None}
        if records:
            times = [seconds(record) or 0.0 for record in records.values()]
            found.append((statistics.mean(times), statistics.mean(average_accuracies(records)), run))
    reached = float("-inf")
    placed = []
    for time, accuracy, run in sorted(found):
        best = accuracy > reached
        placed.append(Labeled(run, time, accuracy, 0.0, BEST if best else OTHERS, joined=best))
        reached = max(reached, accuracy)
    return placed
