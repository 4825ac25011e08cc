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


def table(headings: Sequence[str], rows: Iterable[Sequence[Cell | str]], *, name: str, sortable: bool = False) -> str:
    """A table with a heading row; numbers are right-aligned; sortable by clicking on a heading."""
    listed = [[cell if isinstance(cell, Cell) else Cell(text(cell)) for cell in row] for row in rows]
    numeric = [any(row[i].number is not None for row in listed) for i in range(len(headings))]
    kinds = ["number" if is_number else None for is_number in numeric]
    titles = [tag("button", text(h), type="button") if sortable else text(h) for h in headings]
    head = tag("tr", *(tag("th", t, scope="col", class_=kind) for t, kind in zip(titles, kinds, strict=True)))
    body = [
        tag("tr", *(tag("td", c.shown, class_=kind, data_value=c.number) for c, kind in zip(row, kinds, strict=True)))
        for row in listed
    ]
    whole = tag(
        "table", tag("thead", head), tag("tbody", *body), class_="sortable" if sortable else None, data_name=name
    )
    return tag("div", whole, class_="scroll")


def figure(title: str, content: str, note: str = "", *, name: str, wide: bool = False) -> str:
    """A titled chart or table; ``note`` says how to read it."""
    caption = tag("figcaption", tag("h3", text(title)), tag("p", note) if note else "")
    return tag("figure", caption, content, id=name, class_="wide" if wide else None)


def section(title: str, *figures: str, name: str) -> str:
    """A part of the page; nothing if it has no content."""
    shown = [figure for figure in figures if figure]
    return tag("section", tag("h2", text(title)), tag("div", *shown, class_="figures"), id=name) if shown else ""
