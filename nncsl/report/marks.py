"""How lines and points differ: a color, a dash and a shape each, so that no difference rests on color alone."""

from typing import Literal

from nncsl.report.html import tag, text

Kind = Literal["line", "point", "area"]

COLORS = 8
_DASHES = ("none", "7 3", "2 3", "9 3 2 3", "12 4", "4 2")
_SHAPES = ("circle", "square", "triangle", "diamond", "cross", "plus", "down", "ring")


def style(index: int) -> str:
    """The class that gives the color of the index-th series; colors repeat after eight, shapes and dashes move on."""
    return f"c{index % COLORS + 1}"


def dash(index: int) -> str | None:
    pattern = _DASHES[(index + index // COLORS) % len(_DASHES)]
    return None if pattern == "none" else pattern


def marker(index: int, x: float, y: float, r: float) -> str:
    """Path data of the index-th shape around a point."""
    shape = _SHAPES[(index + index // COLORS) % len(_SHAPES)]
    if shape == "circle":
        return _round(x, y, r, 0)
    if shape == "ring":
        return _round(x, y, r, 0) + _round(x, y, r * 0.4, 1)  # turned the other way: a hole
    corners = {
        "square": [(-0.88, -0.88), (0.88, -0.88), (0.88, 0.88), (-0.88, 0.88)],
        "triangle": [(0, -1.2), (1.1, 0.8), (-1.1, 0.8)],
        "down": [(0, 1.2), (1.1, -0.8), (-1.1, -0.8)],
        "diamond": [(0, -1.3), (1.1, 0), (0, 1.3), (-1.1, 0)],
        "cross": _turned(_PLUS),
        "plus": _PLUS,
    }[shape]
    points = [(x + r * dx, y + r * dy) for dx, dy in corners]
    return "M" + "L".join(f"{_n(px)} {_n(py)}" for px, py in points) + "z"


def swatch(index: int, kind: Kind = "line") -> str:
    """The index-th series in small, as the charts draw it."""
    if kind == "line":
        stroke = tag("path", d="M1 7H31", class_="line", stroke_dasharray=dash(index))
        drawn, width = stroke + tag("path", d=marker(index, 16, 7, 4.5), class_="mark"), 32
    else:
        shape = marker(index, 7, 7, 5) if kind == "point" else "M1 1H13V13H1z"
        drawn, width = tag("path", d=shape, class_="mark"), 14
    box = {"viewBox": f"0 0 {width} 14", "width": width, "height": 14}
    return tag("svg", drawn, class_=f"swatch {style(index)}", aria_hidden="true", **box)


def legend(entries: list[tuple[int, str]], kind: Kind = "line") -> str:
    """(index, name) of each series beside its swatch."""
    items = [tag("li", swatch(index, kind), tag("span", text(name))) for index, name in entries]
    return tag("ul", *items, class_="legend")


_PLUS = [
    *((-0.4, -1.2), (0.4, -1.2), (0.4, -0.4), (1.2, -0.4), (1.2, 0.4), (0.4, 0.4)),
    *((0.4, 1.2), (-0.4, 1.2), (-0.4, 0.4), (-1.2, 0.4), (-1.2, -0.4), (-0.4, -0.4)),
]


def _turned(corners: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """By an eighth of a turn."""
    half = 0.5**0.5
    return [(half * (x - y), half * (x + y)) for x, y in corners]


def _round(x: float, y: float, r: float, turn: int) -> str:
    half = f"a{_n(r)} {_n(r)} 0 1 {turn}"
    return f"M{_n(x - r)} {_n(y)}{half} {_n(2 * r)} 0{half} {_n(-2 * r)} 0z"


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
