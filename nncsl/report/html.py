"""Small pieces of HTML, as strings. Whatever comes from a run is escaped here and nowhere else."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any


def tag(name: str, *children: str, **attributes: Any) -> str:
    """An element. Children are markup already (use ``text``); attributes are escaped, ``_`` stands for ``-``."""
    return f"<{name}{_attributes(attributes)}>{''.join(children)}</{name}>"


def text(value: object) -> str:
    """A value as text that can't become markup."""
    return escape(str(value))


def _attributes(attributes: Mapping[str, Any]) -> str:
    shown = ((key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items() if value is not None)
    return "".join(f' {key}="{escape(str(value))}"' for key, value in shown)


@dataclass(frozen=True)
class Cell:
    """A table cell: what is shown, and the number by which it sorts."""

    shown: str
    number: float | None = None


def table(
    headings: Sequence[str],
    rows: Iterable[Sequence[Cell | str]],
    *,
    name: str,
    sortable: bool = False,
    falling: str | None = None,
) -> str:
    """A table with a heading row and right-aligned numbers. falling: the heading by which the rows fall already."""
    listed = [[cell if isinstance(cell, Cell) else Cell(text(cell)) for cell in row] for row in rows]
    kinds = ["number" if any(row[i].number is not None for row in listed) else None for i in range(len(headings))]
    titles = []
    for heading, kind in zip(headings, kinds, strict=True):
        content = tag("button", text(heading), type="button") if sortable else text(heading)
        order = "descending" if heading == falling else None
        titles.append(tag("th", content, scope="col", class_=kind, aria_sort=order))
    body = []
    for row in listed:
        columns = zip(headings, row, kinds, strict=True)
        cells = [tag("td", c.shown, class_=kind, data_value=c.number, data_label=h) for h, c, kind in columns]
        body.append(tag("tr", *cells))
    parts = tag("thead", tag("tr", *titles)) + tag("tbody", *body)
    return tag("div", tag("table", parts, class_="sortable" if sortable else None, data_name=name), class_="scroll")


def figure(title: str, content: str, note: str = "", *, name: str, wide: bool = False) -> str:
    """A titled chart or table; ``note`` says how to read it."""
    caption = tag("figcaption", tag("h3", text(title)), tag("p", note) if note else "")
    return tag("figure", caption, content, id=name, class_="wide" if wide else None)


def section(title: str, *figures: str, name: str) -> str:
    """A part of the page; nothing if it has no content."""
    shown = [figure for figure in figures if figure]
    return tag("section", tag("h2", text(title)), tag("div", *shown, class_="figures"), id=name) if shown else ""
