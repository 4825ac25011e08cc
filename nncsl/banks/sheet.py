"""A picture of a query: the image asked for, then its neighbors with their similarity and class."""

from pathlib import Path

import numpy as np

from nncsl.banks.place import Place
from nncsl.banks.query import Answer, Neighbor
from nncsl.data.catalog import source_options
from nncsl.data.sources import NO_CLASS, Source, open_source
from nncsl.errors import DataError
from nncsl.files import write_figure
from nncsl.record import earlier

_COLUMNS = 6


def open_images(place: Place) -> Source:
    """The data set of the run that the bank belongs to."""
    config = place.config()
    if place.run is not None and (before := earlier.read(place.run)) is not None:
        return earlier.open_continued(place.run, config, before)[0]
    return open_source(config.dataset, source_options(config))


def check_images(answer: Answer, source: Source) -> None:
    """Image numbers mean something only in the data set that the bank was made from."""
    if answer.dataset is not None and answer.dataset != source.fingerprint:
        raise DataError(
            f"the bank was made from a data set with fingerprint {answer.dataset[:12]}, {source.name} has "
            f"{source.fingerprint[:12]} now: has it changed? --no-image lists the neighbors without pictures"
        )
    largest = max(neighbor.image for neighbor in (answer.query, *answer.neighbors))
    if largest >= len(source.train):
        raise DataError(f"the bank names image {largest}, {source.name} has {len(source.train)} training images")


def class_name(neighbor: Neighbor, source: Source | None) -> str:
    """The data set's class where it is open, else the bank's own label, else nothing."""
    if source is not None:
        label = int(source.train_labels[neighbor.image])
        return "no class" if label == NO_CLASS else source.class_names[label]
    return "" if neighbor.label is None else str(neighbor.label)


def write(answer: Answer, source: Source, target: Path) -> None:
    """One PNG, written beside and renamed."""
    from matplotlib.figure import Figure

    shown = [answer.query, *answer.neighbors]
    rows = -(-len(shown) // _COLUMNS)
    figure = Figure(figsize=(1.6 * _COLUMNS, 0.5 + 2.1 * rows), layout="constrained")
    figure.suptitle(f"{source.name}: image {answer.query.image} and its {len(answer.neighbors)} nearest in the bank")
    axes = figure.subplots(rows, _COLUMNS, squeeze=False).flatten()
    for axis in axes:
        axis.axis("off")
    for axis, neighbor in zip(axes, shown, strict=False):
        (pixels,) = source.train.gather(np.array([neighbor.image])).each()
        axis.imshow(pixels.squeeze(), cmap="gray", vmin=0, vmax=255)
        first = "asked for" if neighbor is answer.query else f"{neighbor.similarity:.3f}"
        axis.set_title(f"{first}\n{class_name(neighbor, source)}\n{neighbor.image}, {neighbor.role}", fontsize=8)
    write_figure(target, figure, dpi=110)
