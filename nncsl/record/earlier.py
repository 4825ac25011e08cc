"""RUN/earlier.json: what a run that continues another one knows of the tasks before its own.

Their data need not exist any more: pixels come from RUN/memory. Where the data sets are still as they were, their test
images are measured too.
"""

import json
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from nncsl.config import Config
from nncsl.data import folders
from nncsl.data.catalog import check_channels, check_known, open_data, source_options
from nncsl.data.parts import Joined, Left, only
from nncsl.data.sources import NO_CLASS, Source, open_source, own_place
from nncsl.data.tasks import Task, check_memory, split_tasks
from nncsl.errors import ConfigError, UserError
from nncsl.record import checksums, remembered
from nncsl.record import folder as run_folder

_PLACE = ("dataset", "data_dir", "cache_dir", "class_list", "test_fraction", "verify_data", "skip_unreadable",
          "max_pixels")  # fmt: skip


@dataclass(frozen=True)
class Stage:
    """A data set that earlier tasks came from: the settings that open it, its classes, how many images it trained."""

    settings: dict[str, Any]
    name: str
    fingerprint: str
    class_names: list[str]
    train_images: int


@dataclass(frozen=True)
class Earlier:
    """run: what was continued; tasks: its lines of tasks.json; stages: its data sets, in order.

    new_tasks, new_sizes, new_labels: how the data set of this run itself is divided.
    """

    run: str
    tasks: list[dict[str, Any]]
    stages: list[Stage]
    new_tasks: int
    new_labels: str
    new_sizes: list[int] | None = None

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(name for stage in self.stages for name in stage.class_names)

    @property
    def train_images(self) -> int:
        return sum(stage.train_images for stage in self.stages)


@dataclass(frozen=True)
class ContinuedSource(Source):
    """A source whose first images are those of earlier tasks, as far as they are remembered; new: the others alone."""

    new: Source = field(kw_only=True)

    @cached_property
    def fingerprint(self) -> str:
        """Return that of what is new: what came before may be gone by now, and can't be looked at."""
        return self.new.fingerprint


def write(folder: Path, earlier: Earlier) -> None:
    """Keep what is known in a run's folder."""
    checksums.write_text(folder, "earlier.json", json.dumps(asdict(earlier)) + "\n")


def read(folder: Path) -> Earlier | None:
    """Return what :func:`write` kept; None for a run that began with its first task."""
    path = folder / "earlier.json"
    if not path.exists():
        return None
    try:
        values = run_folder.read_json(folder, path.name)
        return Earlier(**values | {"stages": [Stage(**stage) for stage in values["stages"]]})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} can't be read ({error}): copy the run anew") from error


def last_stage(config: Config, recorded: dict[str, Any], earlier: Earlier | None) -> Stage:
    """Return what a finished run says of its own data set; recorded: its tasks.json, earlier: what it continued."""
    names, images = recorded["class_names"], recorded["train_images"]
    if earlier is not None:
        names, images = names[len(earlier.class_names) :], images - earlier.train_images
    settings = {key: getattr(config, key) for key in _PLACE}
    return Stage(settings, recorded["dataset"], recorded["fingerprint"], names, images)


def open_run(folder: Path, config: Config, earlier: Earlier | None = None) -> tuple[Source, tuple[Task, ...]]:
    """Return the data of the run in ``folder`` and its tasks, those before its own included."""
    earlier = earlier or read(folder)
    return open_data(config) if earlier is None else open_continued(folder, config, earlier)


def open_continued(folder: Path, config: Config, earlier: Earlier) -> tuple[ContinuedSource, tuple[Task, ...]]:
    """Return the same for a run that continues another one; folder: whose memory has the pixels of earlier tasks."""
    names, count = earlier.class_names, earlier.train_images
    new = open_new(config, names)
    kept = remembered.all_kept(folder)
    if not kept:
        raise UserError(f"{folder / remembered.FOLDER} has no images of earlier tasks: is this the whole run?")
    numbers, rows = np.unique(np.concatenate([each.ids for each in kept]), return_index=True)
    numbers, rows = numbers[numbers < count], rows[numbers < count]  # the others are of this run's own data set
    left = Left(count, numbers, rows, Joined(tuple(each.images for each in kept)))
    labels = np.full(count, remembered.HIDDEN, np.int64)
    labels[numbers] = np.concatenate([each.labels for each in kept])[rows]

    tests, test_labels, start, first = [], [], 0, 0
    for stage in earlier.stages:
        if (source := _as_it_was(stage, config, first)) is not None:
            tests.append(source.test)
            test_labels.append(source.test_labels + first)
            labels[start : start + len(source.train)] = _numbered(source.train_labels, first)
        start, first = start + stage.train_images, first + len(stage.class_names)

    numbered = replace(new, train_labels=_numbered(new.train_labels, first), class_names=(*names, *new.class_names))
    # Of the unlabeled images those that are kept, whichever task had them.
    old = run_folder.recorded_tasks(earlier.tasks, numbered.num_classes, unlabeled=numbers)
    split = split_tasks(
        numbered,
        tasks=earlier.new_tasks,
        sizes=earlier.new_sizes,
        labels=earlier.new_labels,
        seed=config.seed,
        unlabeled_fraction=config.unlabeled_fraction,
        after=old,
    )
    tasks = tuple(replace(t, labeled=t.labeled + count, unlabeled=t.unlabeled + count) for t in split)
    check_memory(config.memory, [len(task.classes) for task in (*old, *tasks)])
    source = ContinuedSource(
        name=new.name,
        train=Joined((left, new.train)),
        train_labels=np.concatenate([labels, numbered.train_labels]),
        test=Joined((*tests, new.test)),
        test_labels=np.concatenate([*test_labels, new.test_labels + first]),
        class_names=numbered.class_names,
        left_out=new.left_out,
        new=new,
    )
    return source, (*old, *tasks)


def open_new(config: Config, known: tuple[str, ...]) -> Source:
    """Return the configured data set without the classes that are known by name."""
    check_known(replace(config, tasks=1))
    options = replace(source_options(config), first_label=len(known))
    kind, path = own_place(config.dataset)
    if kind == "folder" and path is not None:  # old classes need not be decoded
        found = folders.read_class_list(options.class_list) if options.class_list else folders.class_names(path)
        options = replace(options, classes=tuple(name for name in found if name not in known) or found)
    source = open_source(config.dataset, options)
    new = [name for name in source.class_names if name not in known]
    if not new:
        raise ConfigError(
            f"--dataset {config.dataset} has no new classes: the run knows {', '.join(source.class_names)} already"
        )
    source = only(source, new)
    check_channels(config, source)
    return source


def _numbered(labels: np.ndarray, first: int) -> np.ndarray:
    """Labels of a data set among all classes, of which its own begin with ``first``."""
    return np.where(labels == NO_CLASS, NO_CLASS, labels + first)


def _as_it_was(stage: Stage, config: Config, first_label: int) -> Source | None:
    """The stage's data set, where it can be read and has the same images; it may have become a part of the new one."""
    for place in (stage.settings, {key: getattr(config, key) for key in _PLACE}):
        config = replace(config, **place)
        options = replace(source_options(config), classes=tuple(stage.class_names), first_label=first_label)
        try:
            source = open_source(config.dataset, options)
            source = replace(only(source, stage.class_names), name=stage.name)
        except (UserError, ValueError):  # gone, or without these classes
            continue
        if source.fingerprint == stage.fingerprint:
            return source
    return None
