"""Names beside the points of a figure, off other names, points and lines as far as there is room."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.transforms import Bbox


class Labeled(NamedTuple):
    """A point with its name. Points of one color that are ``joined`` have a line through them, in their order."""

    text: str
    x: float
    y: float
    deviation: float
    color: str
    joined: bool = True


def write(axes: plt.Axes, points: Sequence[Labeled]) -> None:
    """Write each point's name near it. Everything else has to be drawn, and to have its place."""
    inside = axes.get_window_extent()
    taken = [_around(axes, point) for point in points]
    lines = [box for color in dict.fromkeys(point.color for point in points) for box in _line(axes, points, color)]
    pixels = axes.figure.dpi / 72  # in a point
    for point in sorted(points, key=lambda point: -point.y):
        written = axes.annotate(
            point.text,
            (point.x, point.y),
            (0, 0),
            textcoords="offset points",
            ha="center",
            va="center",
            color=point.color,
            fontsize=9,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.5},  # for where it crosses a line
        )
        box = written.get_window_extent()
        places = {}
        for side, up in itertools.product((1, -1, 0), (0, 11, -11, 20, -20, 29, -29)):
            right = side * (7 + box.width / pixels / 2)
            there = box.translated(right * pixels, up * pixels)
            outside = box.width * box.height - _shared(there, inside)
            covered = sum(_shared(there, other) for other in taken)
            crossed = sum(_shared(there, other) for other in lines)
            places[right, up] = 10 * outside + 4 * covered + crossed + 8 * abs(up)
        right, up = min(places, key=places.__getitem__)
        written.set_position((right, up))
        taken.append(box.translated(right * pixels, up * pixels))


def _around(axes: plt.Axes, point: Labeled) -> Bbox:
    """Return the pixels of a point and its deviation."""
    low = axes.transData.transform((point.x, point.y - point.deviation))
    high = axes.transData.transform((point.x, point.y + point.deviation))
    return Bbox([low - 6, high + 6])


def _line(axes: plt.Axes, points: Sequence[Labeled], color: str) -> list[Bbox]:
    """Return the pixels of the line between the points of a color, as a row of small boxes."""
    joined = [point for point in points if point.joined and point.color == color]
    ends = [axes.transData.transform((point.x, point.y)) for point in joined]
    places = [a + (b - a) * share for a, b in itertools.pairwise(ends) for share in np.linspace(0, 1, 60)]
    return [Bbox([place - 2, place + 2]) for place in places]


def _shared(first: Bbox, second: Bbox) -> float:
    """Return how many square pixels two boxes have in common."""
    both = Bbox.intersection(first, second)
    return both.width * both.height if both is not None else 0.0
