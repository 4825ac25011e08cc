"""Accuracy against bytes kept: a panel for each data set and number of labels, a line for each method's memories.

Bytes are those with the paper's network (full_size.py), on a logarithmic axis; accuracies are mean and standard
deviation over seeds.
"""

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib

from ..accuracy import campaign, full_size, point_labels
from ..accuracy.campaign import Campaign
from ..accuracy.point_labels import Labeled
from ..accuracy.records import Record

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator

from nncsl.files import written_beside
from nncsl.record.ledger import TOTAL

# Okabe and Ito's colors, which people of any color vision tell apart, without yellow; the markers differ as well.
STYLES = tuple(
    zip(("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00"), "osD^vPX", strict=True)
)
TICKS = tuple(factor * 10.0**power for power in range(-3, 4) for factor in (1, 2, 5))


class Point(NamedTuple):
    """A run over its seeds."""

    method: str
    labels: str
    images: int
    megabytes: float
    accuracy: float
    deviation: float


def draw(shown: Sequence[Campaign], path: Path) -> Path | None:
    """Write the figure of one campaign, or of several side by side; None where no run recorded its bytes."""
    found = {one.title: points(one) for one in shown}
    found = {title: of_it for title, of_it in found.items() if of_it}
    if not found:
        return None
    methods = list(dict.fromkeys(point.method for of_it in found.values() for point in of_it))
    styles = {method: STYLES[number % len(STYLES)] for number, method in enumerate(methods)}
    ratios = list(dict.fromkeys(point.labels for of_it in found.values() for point in of_it))
    alone = len(found) == 1
    rows, columns = (1, len(ratios)) if alone else (len(ratios), len(found))
    # The same bytes for the same figure: no random names, no date; letters as paths, which look alike everywhere.
    with plt.rc_context({"svg.hashsalt": "nncsl", "svg.fonttype": "path", "font.size": 10}):
        figure = plt.figure(figsize=(5 * columns, 3.7 * rows + 0.7), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False, sharex=True)
        drawn = []
        for place, (title, of_it) in enumerate(found.items()):
            for number, ratio in enumerate(ratios):
                axes = panels[0][number] if alone else panels[number][place]
                these = [point for point in of_it if point.labels == ratio]
                drawn.append((axes, these))
                _panel(axes, these, styles, f"{title.partition(',')[0]}, {ratio} labels")
        _legend(figure, panels)
        figure.canvas.draw()  # from here on everything has its place
        figure.set_layout_engine("none")
        for axes, these in drawn:
            point_labels.write(axes, [_labeled(point, styles) for point in these])
        with written_beside(path) as beside:
            figure.savefig(beside, format="svg", metadata={"Date": None})
        plt.close(figure)
    return path


def draw_all() -> Path | None:
    """Write the figure of all campaigns that count bytes, as far as they are recorded, side by side."""
    counting = [one for one in map(campaign.read, campaign.names()) if one.counts_bytes]
    return draw(counting, campaign.RESULTS / "bytes.svg")


def points(shown: Campaign) -> list[Point]:
    """Return the campaign's runs whose bytes are known; those of one method one after the other, fewest bytes first."""
    found = [point for run in shown.runs for point in _point(list(shown.records(run).values()))]
    order = list(dict.fromkeys(point.method for point in found))
    return sorted(found, key=lambda point: (order.index(point.method), point.megabytes))


def _point(records: list[Record]) -> Iterator[Point]:
    ledgers = [(record, full_size.kept(record)) for record in records]
    counted = [(record, parts) for record, parts in ledgers if parts]
    if counted:
        record, parts = counted[0]
        accuracies = [each["summary"]["average_accuracy"] for each, _ in counted]
        yield Point(
            _method(record["config"]["method"], parts),
            record["config"]["labels"],
            _images(record, parts),
            statistics.mean(each[TOTAL] for _, each in counted) / 1e6,
            statistics.mean(accuracies),
            statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0,
        )


def _method(name: str, parts: dict[str, int]) -> str:
    """Return its name, and where its old network's answers come from."""
    teachers = [teacher for part, teacher in (("teacher", "copied teacher"), ("bank", "bank")) if part in parts]
    return ", ".join([name, " and ".join(teachers)] if teachers else [name])


def _images(record: Record, parts: dict[str, int]) -> int:
    """Return how many labeled images were remembered: fewer than the memory has room for where fewer have labels."""
    room, unlabeled = record["config"]["memory"], record["config"].get("unlabeled_memory", 0)
    return room if unlabeled else min(room, parts.get("labels", 0) // 16)  # number and label, eight bytes each


def _panel(axes: plt.Axes, these: list[Point], styles: dict[str, tuple[str, str]], title: str) -> None:
    for method, (color, marker) in styles.items():
        line = [point for point in these if point.method == method]
        if line:
            axes.errorbar(
                [point.megabytes for point in line],
                [point.accuracy for point in line],
                [point.deviation for point in line],
                color=color,
                marker=marker,
                markersize=6,
                linewidth=1.5,
                elinewidth=1,
                capsize=3,
                label=method,
            )
    axes.set_title(title, fontsize=11)
    axes.set_xscale("log")
    axes.margins(x=0.2, y=0.15)
    axes.xaxis.set_major_locator(FixedLocator(TICKS))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_tick_params(labelbottom=True)
    axes.grid(color="#e0e0e0", linewidth=0.6)
    axes.set_axisbelow(True)


def _legend(figure: Any, panels: Any) -> None:
    """Methods below all panels, and what the axes are beside the outer ones."""
    for axes in panels[-1]:
        axes.set_xlabel("MB kept beside the student, with ResNet-18")
    for axes in panels[:, 0]:
        axes.set_ylabel("average accuracy, %")
    handles = {
        label: handle for axes in panels.flat for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=min(len(handles), 5), frameon=False
    )


def _labeled(point: Point, styles: dict[str, tuple[str, str]]) -> Labeled:
    text = f"{point.method.replace('copied teacher', 'copy')} {point.images:,}"
    return Labeled(text, point.megabytes, point.accuracy, point.deviation, styles[point.method][0])
