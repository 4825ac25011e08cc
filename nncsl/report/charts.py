"""Charts as inline SVG: pure functions from numbers to markup. Colors come from the page's style sheet."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from rich.cells import cell_len

from nncsl.report import marks, scales
from nncsl.report.html import tag, text

Point = tuple[float, float]
Place = Callable[[float], float]  # a number to its position in the drawing

_WIDTH, _HEIGHT = 420, 264
_LEFT, _RIGHT, _TOP, _BOTTOM = 50, 14, 28, 44
_MARKERS = 9
_LETTER, _LINE = 9.5, 19.0  # room for a letter of a name among points, and for a line of them


@dataclass(frozen=True)
class Series:
    """A line: points by rising x, and optionally a deviation for each, drawn as a band."""

    name: str
    points: Sequence[Point]
    deviations: Sequence[float] | None = None


def measured(points: Iterable[tuple[float, float | None]]) -> list[Point]:
    """Return the points of a curve without those that nobody could measure."""
    return [(x, y) for x, y in points if y is not None]


def line_chart(
    series: Sequence[Series],
    *,
    x_label: str,
    y_label: str,
    span: tuple[float, float] | None = None,
    ceiling: float | None = None,
    dividers: Sequence[tuple[float, str]] = (),
) -> str:
    """Lines over a common x. span: of the x axis, by default of the points; ceiling: what y can't exceed.

    dividers: (x, name) where the parts of the x axis begin.
    """
    drawable = [(index, s) for index, s in enumerate(series) if s.points]  # an empty one keeps its color to itself
    xs = [x for _, s in drawable for x, _ in s.points]
    if not xs:
        return ""
    y_ticks = scales.ticks(*_extent([s for _, s in drawable], ceiling))
    left, right = span or (min(xs), max(xs))
    margin = 0.5 if left == right else 0.0

    def at_x(x: float) -> float:
        return _LEFT + (x - left + margin) / (right - left + 2 * margin) * (_WIDTH - _LEFT - _RIGHT)

    def at_y(y: float) -> float:
        return _HEIGHT - _BOTTOM - (y - y_ticks[0]) / (y_ticks[-1] - y_ticks[0]) * (_HEIGHT - _TOP - _BOTTOM)

    drawn = [_axes(y_ticks, at_y, scales.whole_ticks(left, right), at_x, x_label, y_label)]
    drawn.append(_dividers(dividers, at_x))
    drawn += [_band(index, s, at_x, at_y) for index, s in drawable if s.deviations and any(s.deviations)]
    drawn += [_line(index, len(series), s, at_x, at_y) for index, s in drawable]
    names = [(index, s.name) for index, s in drawable]
    label = f"{y_label} over {x_label}: " + ", ".join(name for _, name in names)
    svg = tag("svg", *drawn, viewBox=f"0 0 {_WIDTH} {_HEIGHT}", role="img", aria_label=label)
    plot = {"data_left": _LEFT, "data_right": _WIDTH - _RIGHT, "data_from": left - margin, "data_to": right + margin}
    chart = tag("div", svg, class_="chart", data_x_label=x_label, **plot)
    return chart + (marks.legend(names) if len(series) > 1 else "")


def scatter(
    points: np.ndarray,
    groups: Sequence[int],
    names: Sequence[str],
    faded: Sequence[bool],
    *,
    label: str,
    named: bool = True,
) -> str:
    """points [n, 2] in any units, colored by ``groups`` [n] (an index into names).

    named: write each group's name near its middle, where a group is one heap and no other name stands there.
    """
    side, edge = 420, 16
    low, high = points.min(axis=0), points.max(axis=0)
    placed = edge + (points - low) / np.maximum(high - low, 1e-9) * (side - 2 * edge)
    placed[:, 1] = side - placed[:, 1]
    members = np.asarray(groups)
    dots, titles = [], []
    taken: list[tuple[float, float, float]] = []
    for index, name in enumerate(names):
        own = placed[members == index]
        if not len(own):
            continue
        path = tag(
            "path", tag("title", text(name)), d="".join(marks.marker(index, x, y, 3.4) for x, y in own), class_="mark"
        )
        kind = f"group {marks.style(index)}" + (" faded" if faded[index] else "")
        dots.append(tag("g", path, class_=kind, data_name=name, data_count=len(own)))
        if (place := _free_place(own, name, taken, side)) is not None:
            titles.append(tag("text", text(name), x=f"{place[0]:.0f}", y=f"{place[1] + 5:.0f}", class_="name"))
    shown = titles if named else []
    return tag("svg", *dots, *shown, viewBox=f"0 0 {side} {side}", role="img", aria_label=label, class_="scatter")


def _free_place(own: np.ndarray, name: str, taken: list[tuple[float, float, float]], side: int) -> Point | None:
    """Return the group's point nearest to its middle at which its name covers no other one, and take that place.

    own: points [n, 2]; taken: middle and half width of the names that stand already. None where there is no room: the
    legend has the name as well. At a point of its own, as the middle of two heaps may belong to another group.
    """
    half = _LETTER * cell_len(name) / 2 + 3  # and a gap beside it
    for x, y in own[np.argsort(np.abs(own - np.median(own, axis=0)).sum(axis=1), kind="stable")]:
        x = float(np.clip(x, half, side - half)) if 2 * half < side else side / 2
        if all(abs(y - other_y) > _LINE or abs(x - other_x) > half + other for other_x, other_y, other in taken):
            taken.append((x, float(y), half))
            return x, float(y)
    return None


def shaded_grid(counts: np.ndarray, names: Sequence[str], *, label: str) -> str:
    """A matrix [n, n] too large for numbers: each row shaded by its shares, zeros left out."""
    side = len(counts)
    totals = counts.sum(axis=1, keepdims=True)
    shares = counts / np.maximum(totals, 1)
    cells = []
    for i, j in np.argwhere(counts > 0):
        title = f"{names[i]} taken for {names[j]}: {counts[i, j]}" if i != j else f"{names[i]}: {counts[i, j]} right"
        place = {
            "x": j,
            "y": i,
            "width": 1,
            "height": 1,
            "style": f"--v:{shares[i, j]:.2f}",
            "data_value": counts[i, j],
        }
        cells.append(tag("rect", tag("title", text(title)), **place))
    frame = tag("rect", x=0, y=0, width=side, height=side, class_="frame")
    return tag("svg", frame, *cells, viewBox=f"0 0 {side} {side}", role="img", aria_label=label, class_="grid")


def _extent(series: Sequence[Series], ceiling: float | None) -> tuple[float, float]:
    """Lowest and highest value, bands included; up to the ceiling where there is one."""
    around = [(y, d) for s in series for (_, y), d in zip(s.points, s.deviations or [0.0] * len(s.points), strict=True)]
    floor = 0.0 if min(y for y, _ in around) >= 0 else float("-inf")  # no band of losses or percents goes below
    low, high = max(floor, min(y - d for y, d in around)), ceiling or max(y + d for y, d in around)
    return (0.0, high) if ceiling and low >= ceiling else (low, high)  # all at the ceiling: nothing lies above it


def _axes(
    y_ticks: Sequence[float], at_y: Place, x_ticks: Sequence[int], at_x: Place, x_label: str, y_label: str
) -> str:
    bottom, end = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    parts = []
    for y in y_ticks:
        parts.append(tag("path", d=f"M{_LEFT} {at_y(y):.1f}H{end}", class_="rule"))
        parts.append(tag("text", scales.short(y), x=_LEFT - 7, y=f"{at_y(y) + 4:.1f}", class_="tick end"))
    for x in x_ticks:
        parts.append(tag("text", str(x), x=f"{at_x(x):.1f}", y=bottom + 18, class_="tick middle"))
    parts.append(tag("text", text(x_label), x=(_LEFT + end) / 2, y=_HEIGHT - 6, class_="axis middle"))
    parts.append(tag("text", text(y_label), x=2, y=11, class_="axis"))
    return tag("g", *parts, class_="axes")


def _dividers(dividers: Sequence[tuple[float, str]], at_x: Place) -> str:
    """Faint verticals where a part begins, named as far as there is room."""
    every = -(-len(dividers) // 6)
    parts = []
    for number, (x, name) in enumerate(dividers):
        if number:
            parts.append(tag("path", d=f"M{at_x(x):.1f} {_TOP}V{_HEIGHT - _BOTTOM}", class_="divider"))
        if number % every == 0:
            parts.append(tag("text", text(name), x=f"{at_x(x):.1f}", y=_TOP - 6, class_="part"))
    return "".join(parts)


def _band(index: int, series: Series, at_x: Place, at_y: Place) -> str:
    around = list(zip(series.points, series.deviations or (), strict=True))
    above = [f"{at_x(x):.1f} {max(at_y(y + d), _TOP):.1f}" for (x, y), d in around]
    below = [f"{at_x(x):.1f} {min(at_y(y - d), _HEIGHT - _BOTTOM):.1f}" for (x, y), d in reversed(around)]
    return tag("path", d="M" + "L".join(above + below) + "z", class_=f"band {marks.style(index)}")


def _line(index: int, count: int, series: Series, at_x: Place, at_y: Place) -> str:
    """The line, and a few marked points on it; the marks of different lines stand at different places."""
    corners = "L".join(f"{at_x(x):.1f} {at_y(y):.1f}" for x, y in series.points)
    line = tag("path", d="M" + corners, class_="line", stroke_dasharray=marks.dash(index))
    every = -(-len(series.points) // _MARKERS)
    first = every * index // max(1, count)
    marked = range(first, len(series.points), every) if every > 1 else range(len(series.points))
    dots = [
        tag(
            "path",
            tag("title", text(f"{series.name}: {series.points[i][1]:.4g} at {series.points[i][0]:g}")),
            d=marks.marker(index, at_x(series.points[i][0]), at_y(series.points[i][1]), 4),
            class_="mark",
        )
        for i in marked
    ]
    points = " ".join(f"{x:g},{y:.6g}" for x, y in series.points)
    return tag("g", line, *dots, class_=f"series {marks.style(index)}", data_name=series.name, data_points=points)
