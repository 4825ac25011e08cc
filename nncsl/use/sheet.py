"""A picture of decisions: each image, and beside it the remembered images that decided what it is."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nncsl.files import write_figure
from nncsl.use.many import Batch
from nncsl.use.model import Model, Neighbor

MOST = 30  # rows: more of them nobody looks at


class Row(NamedTuple):
    """An image uint8 [h, w, C], what it was taken for, and the neighbors that decided."""

    image: np.ndarray
    title: str
    neighbors: tuple[Neighbor, ...]


def rows(batch: Batch) -> list[Row]:
    """Return a row for each image that was decided by neighbors."""
    return [
        Row(image, f"{file.name}\n{best[0][0]} {best[0][1]:.2f}", near)
        for file, image, best, near in zip(
            batch.files, batch.images, batch.found.top(1), batch.found.neighbors or (), strict=True
        )
    ]


def write(path: Path, model: Model, shown: Sequence[Row]) -> None:
    """Write the first rows as a PNG, beside and renamed."""
    from matplotlib.figure import Figure

    shown = shown[:MOST]
    columns = 1 + max(len(row.neighbors) for row in shown)
    figure = Figure(figsize=(1.25 * columns + 0.4, 1.5 * len(shown)), layout="constrained")
    axes = figure.subplots(len(shown), columns, squeeze=False)
    for axis in axes.flatten():
        axis.axis("off")
    for line, row in zip(axes, shown, strict=True):
        _show(line[0], row.image, row.title, weight="bold")
        pixels = model.remembered([near.id for near in row.neighbors])
        for axis, near, image in zip(line[1:], row.neighbors, pixels, strict=True):
            _show(axis, image, f"{near.name} {near.weight:.2f}\nimage {near.id}")
    write_figure(path, figure, dpi=80, advice="choose another --sheet")


def _show(axis: Any, pixels: np.ndarray, title: str, weight: str = "normal") -> None:
    axis.imshow(pixels.squeeze(), cmap="gray", vmin=0, vmax=255)
    axis.set_title(title, fontsize=8, fontweight=weight, parse_math=False)
