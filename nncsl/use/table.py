"""Predictions as lines for people and as a table for spreadsheets."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from nncsl import files
from nncsl.use.model import Predictions


def lines(names: Iterable[Path], found: Predictions, top: int) -> Iterator[str]:
    """Give a line per image: its name, the most probable classes, and below it the neighbors that decided."""
    for number, (name, best) in enumerate(zip(names, found.top(top), strict=True)):
        yield f"{name}: " + ", ".join(f"{each} {probability:.3f}" for each, probability in best)
        if found.neighbors is not None:
            near = (f"{each.name} {each.weight:.3f} (image {each.id})" for each in found.neighbors[number])
            yield "    by " + ", ".join(near)


def rows(names: Iterable[Path], found: Predictions, top: int) -> list[dict[str, Any]]:
    """Return a row per image: image, class_1, probability_1, ... and neighbor_1, neighbor_1_class, ..._weight."""
    made = []
    for number, (name, best) in enumerate(zip(names, found.top(top), strict=True)):
        row: dict[str, Any] = {"image": str(name)}
        for place, (each, probability) in enumerate(best, 1):
            row |= {f"class_{place}": each, f"probability_{place}": f"{probability:.6f}"}
        for place, near in enumerate(found.neighbors[number] if found.neighbors is not None else (), 1):
            row |= {f"neighbor_{place}": near.id, f"neighbor_{place}_class": near.name}
            row |= {f"neighbor_{place}_weight": f"{near.weight:.6f}"}
        made.append(row)
    return made


def write(path: Path, made: Sequence[dict[str, Any]]) -> None:
    """Write rows as csv, beside and renamed."""
    files.write_table(path, made, list(dict.fromkeys(["image", *(name for row in made for name in row)])))
