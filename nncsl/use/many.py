"""Many image files, a batch at a time, with a bar on a terminal; what can't be read is named and left out."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from nncsl.errors import DataError
from nncsl.terminal import Screen
from nncsl.use.model import By, Model, Predictions


class Batch(NamedTuple):
    """files and images: those that could be read, uint8 [h, w, C] each; problems: a sentence about each other one."""

    files: list[Path]
    images: list[np.ndarray]
    found: Predictions
    problems: list[str]


def predicted(model: Model, files: Sequence[Path], by: By) -> Iterator[Batch]:
    """Give the predictions for all files, in their order."""
    console = Screen(stderr=True)
    bar = Progress(
        BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console, disable=not console.is_terminal
    )
    with bar, ThreadPoolExecutor() as pool:
        step = bar.add_task("", total=len(files))
        for start in range(0, len(files), model.batch):
            part = files[start : start + model.batch]
            read = list(pool.map(lambda file: _read(model, file), part))
            good = [(file, image) for file, image in zip(part, read, strict=True) if isinstance(image, np.ndarray)]
            names, images = [file for file, _ in good], [image for _, image in good]
            problems = [problem for problem in read if isinstance(problem, str)]
            yield Batch(names, images, model.judge(images, by), problems)
            bar.advance(step, len(part))


def _read(model: Model, file: Path) -> np.ndarray | str:
    try:
        return model.prepare(file)
    except DataError as error:
        return str(error)
