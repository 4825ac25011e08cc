"""Contact sheets: the labeled images of the split, and one image's views, for a person to look at."""

from pathlib import Path

import numpy as np

from nncsl.config import Config
from nncsl.data.catalog import open_data
from nncsl.data.policy import KINDS, PRESET_KINDS, ViewPolicy
from nncsl.data.sources import ImageBatch, Source
from nncsl.data.tasks import Task
from nncsl.data.views import as_pixels, make_views
from nncsl.errors import DataError
from nncsl.files import write_figure

_ROWS, _COLUMNS = 20, 10


def write_sheets(config: Config, folder: Path) -> list[Path]:
    """Writes ``<dataset>-labeled.png`` and ``<dataset>-views.png`` into ``folder``; returns their paths."""
    source, tasks = open_data(config)
    labeled = np.concatenate([task.labeled for task in tasks])
    classes = [label for task in tasks for label in task.classes][:_ROWS]
    rows = {}
    for label in classes:
        members = labeled[source.train_labels[labeled] == label][:_COLUMNS]
        rows[source.class_names[label]] = source.train.gather(members).each()

    views = views_of_one_image(config, source, tasks, kinds=KINDS)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return [
            _save(rows, folder / f"{source.name}-labeled.png", f"{source.name}: labeled images ({config.labels})"),
            _save(views, folder / f"{source.name}-views.png", f"{source.name}: views of training image {labeled[0]}"),
        ]
    except OSError as error:
        raise DataError(f"{folder} can't be written: {error.strerror or error}; choose another --out") from error


def views_of_one_image(
    config: Config, source: Source, tasks: tuple[Task, ...], kinds: tuple[str, ...] = PRESET_KINDS
) -> dict[str, list[np.ndarray]]:
    """The first labeled image and ten views of it of each kind, uint8 [H, W, C] each; one plain view: all are equal."""
    image = tasks[0].labeled[:1]
    original = source.train.gather(image)
    views = {"original": original.each()}
    for kind in kinds:
        rendered = _views(original, image, config.views, kind, config.seed)
        views[kind] = rendered[:1] if kind == "plain" else rendered
    return views


def _views(original: ImageBatch, image: np.ndarray, policy: ViewPolicy, kind: str, seed: int) -> list[np.ndarray]:
    """Ten views of one image, back in 8-bit pixels."""
    ids, slots = np.repeat(image, _COLUMNS), np.arange(_COLUMNS)
    pixels = np.repeat(original.pixels, _COLUMNS, axis=0)
    sizes = None if original.sizes is None else np.repeat(original.sizes, _COLUMNS, axis=0)
    rendered = make_views(pixels, ids, slots, policy=policy, kind=kind, seed=seed, task=0, sizes=sizes)
    return list(as_pixels(rendered, policy))


def _save(rows: dict[str, list[np.ndarray]], path: Path, title: str) -> Path:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1 + _COLUMNS, 0.6 + len(rows)), layout="constrained")
    figure.suptitle(title)
    axes = figure.subplots(len(rows), _COLUMNS, squeeze=False)
    for line, (name, images) in zip(axes, rows.items(), strict=True):
        line[0].set_ylabel(name, rotation=0, ha="right", va="center")
        for axis in line:
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_visible(False)
        for axis, image in zip(line, images, strict=False):
            axis.imshow(image.squeeze(), cmap="gray", vmin=0, vmax=255)
    write_figure(path, figure, dpi=110)
    return path
