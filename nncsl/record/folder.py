"""A run's folder: where it lies, what it was started with, and what may change when it goes on."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from nncsl import config as configs
from nncsl import files, networks
from nncsl.config import Config, build
from nncsl.data.labels import LabelBudget
from nncsl.data.sources import Source, dataset_name, own_place
from nncsl.data.tasks import Task
from nncsl.errors import ConfigError, DamagedError, UserError
from nncsl.files import make_folder, without_beside
from nncsl.record import checkpoint, checksums, owner
from nncsl.record import tensorboard as events
from nncsl.record.remembered import HIDDEN

# Where data lies, what computes, and how much memory that takes: none of it decides what a run learns.
MOVABLE = ("data_dir", "cache_dir", "device", "memory_budget", "micro_batch", "recompute", "spill", "bank_residency",
           "prefetch", "cuda_graph", "ranks_timeout", "network.weights")  # fmt: skip

_LONGEST_NAME = 80  # of a data set, in the name of a run's folder


def describe_tasks(source: Source, tasks: tuple[Task, ...], earlier: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """The split, so that a result can be traced to its images: classes, labeled images, and a count of the others.

    earlier: the lines of the first tasks, where those are another run's; left_out: images that can't be read, if any.
    """
    lines = [
        {"classes": list(task.classes), "labeled": task.labeled.tolist(), "unlabeled_images": len(task.unlabeled)}
        for task in tasks[len(earlier) :]
    ]
    facts: dict[str, Any] = {
        "dataset": source.name,
        "fingerprint": source.fingerprint,
        "class_names": list(source.class_names),
    }
    facts |= {"train_images": len(source.train), "tasks": [*earlier, *lines]}
    return facts | ({"left_out": list(source.left_out)} if source.left_out else {})


def read_tasks(folder: Path) -> dict[str, Any]:
    """Return what tasks.json says: what :func:`describe_tasks` gave, in runs of older versions less of it.

    "tasks" has of each at least its ``classes`` and its ``labeled`` images.
    """
    path = folder / "tasks.json"
    content = read_json(folder, path.name)
    tasks = content.get("tasks") if isinstance(content, dict) else None
    listed = tasks if isinstance(tasks, list) and all(isinstance(task, dict) for task in tasks) else [{}]
    numbers = [task.get(key) for task in listed for key in ("classes", "labeled")]
    order = [label for task in listed for label in task.get("classes") or ()] if all(map(_counts, numbers)) else None
    if not order or sorted(order) != list(range(len(order))):
        raise ConfigError(f"{path} is damaged: it does not say which classes are whose; copy the run anew")
    return content | {"tasks": listed}


def recorded_tasks(lines: Sequence[dict[str, Any]], num_classes: int, unlabeled: np.ndarray) -> tuple[Task, ...]:
    """Return tasks as far as they are recorded: classes, and which images had labels, but not which labels.

    unlabeled: what is known of their unlabeled images, int64 [u].
    """
    made: list[Task] = []
    for index, line in enumerate(lines):
        labeled, old = np.array(line["labeled"], np.int64), made[-1].seen if made else ()
        unknown = np.full(len(labeled), HIDDEN)
        made.append(Task(index, tuple(line["classes"]), labeled, unknown, unlabeled, old, num_classes))
    return tuple(made)


def _counts(numbers: Any) -> bool:
    """Whether this is a list of numbers of images or classes."""
    return isinstance(numbers, list) and all(type(number) is int and 0 <= number < 2**31 for number in numbers)


def new_folder(folder: Path | None, config: Config) -> Path:
    """The folder of a new run, made; one that holds a run already is refused."""
    if folder is None:
        name = f"{dataset_name(config.dataset)[:_LONGEST_NAME]}-{config.method}-seed{config.seed}"
        folder = unused_folder(Path("runs") / name)
    if folder.exists() and not _nothing_to_lose(folder):
        raise ConfigError(f"--out {folder} is not empty: continue it with --resume {folder}, or choose another folder")
    try:
        make_folder(folder)
    except OSError as error:
        raise ConfigError(f"--out {folder} can't be created: {error.strerror}; choose another folder") from error
    return folder


def _nothing_to_lose(folder: Path) -> bool:
    """An empty folder, or one whose run ended before its first checkpoint."""
    ours = {"config.yaml", "plan.json", "tasks.json", "command.txt", "metrics.jsonl", "checkpoint", "memory"}
    ours |= {events.FOLDER, "earlier.json", "snapshots", "inputs", checksums.NAME, owner.LOCK, f"{owner.LOCK}.held"}
    if not folder.is_dir():
        return False
    saved = [folder / "checkpoint" / name for name in (checkpoint.STATE, checkpoint.PREVIOUS)]
    names = {without_beside(path.name) for path in folder.iterdir()}
    return names <= ours and not any(path.exists() for path in saved)


def unused_folder(wanted: Path) -> Path:
    """Return a folder of that name, or with the first number behind it that is free."""
    folder, number = wanted, 1
    while folder.exists():
        number += 1
        folder = wanted.with_name(f"{wanted.name}-{number}")
    return folder


def read_config(folder: Path) -> Config:
    """The configuration that the run was started with."""
    path = folder / "config.yaml"
    if not folder.exists():
        here = sorted(str(found.parent) for found in Path("runs").glob("*/config.yaml"))
        known = f"; runs here: {', '.join(here[:5])}" if here else ""
        raise ConfigError(f"{folder} is not a run: it does not exist{known}")
    if not path.exists():
        raise ConfigError(
            f"{folder} is not a run: {path.name} is not in it; nothing was saved yet, or it is another folder"
        )
    try:
        checksums.check(folder, path.name)
    except DamagedError as error:
        raise _explained(folder, error) from error
    return configs.read(path)


def read_json(folder: Path, name: str) -> Any:
    """Return what a run's small file holds; a DamagedError names one that is not what was written."""
    checksums.check(folder, name)
    return files.read_json(folder / name)


def _explained(folder: Path, damaged: DamagedError) -> UserError:
    """Return the error about a config.yaml that is not what was written: by name, if settings differ from the saved."""
    try:
        found = configs.read(folder / "config.yaml")
        saved = configs.recorded(checkpoint.load(folder / "checkpoint" / checkpoint.STATE)["config"])
        changes = changed(build.plain(saved), found)
    except Exception:  # it can't be read, or there is nothing to compare it with
        return damaged
    return ConfigError(f"{damaged}. The checkpoint has other settings: {changes}") if changes else damaged


def refuse_changes(folder: Path, recorded: dict[str, Any], wanted: Config) -> None:
    """A resumed run keeps its settings, apart from those that may move."""
    if shown := changed(recorded, wanted):
        raise ConfigError(f"{folder} was started with another configuration: {shown}. Start a new run for that")


def changed(recorded: dict[str, Any], wanted: Config) -> str:
    """Return which settings differ, apart from those that may move; nothing if none do."""
    found = build.differences(recorded, build.plain(wanted))
    found = [each for each in found if each[0] != "head_outputs" or wanted.head_outputs]  # 0: as a run chooses it
    return "; ".join(
        f"{key} is {there!r} there, {here!r} was asked for" for key, there, here in found if key not in MOVABLE
    )


def with_absolute_paths(config: Config) -> Config:
    """So that a run can be resumed from anywhere; the file of a backbone's weights is known by its checksum besides."""
    paths = {name: getattr(config, name) for name in ("data_dir", "cache_dir", "class_list")}
    paths["labels"] = config.labels if LabelBudget.parse(config.labels).file else None
    absolute: dict[str, Any] = {
        name: str(files.expanded(p, absolute=True)) for name, p in paths.items() if p is not None
    }
    kind, place = own_place(config.dataset)
    if place is not None:
        absolute["dataset"] = f"{kind}:{place.resolve()}"
    return replace(config, **absolute, network=networks.pinned(config.network))
