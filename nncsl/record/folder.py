"""A run's folder: where it lies, what it was started with, and what may change when it goes on."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from nncsl import config as configs
from nncsl.config import Config, build
from nncsl.data.labels import LabelBudget
from nncsl.data.sources import Source
from nncsl.data.tasks import Task
from nncsl.errors import ConfigError, UserError
from nncsl.record import tensorboard as events
from nncsl.record.remembered import HIDDEN

# Where data lies, what computes, and how much memory that takes: none of it decides what a run learns.
MOVABLE = ("data_dir", "cache_dir", "device", "memory_budget", "micro_batch", "recompute", "spill", "bank_residency",
           "prefetch", "cuda_graph", "ranks_timeout")  # fmt: skip


def describe_tasks(source: Source, tasks: tuple[Task, ...], earlier: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """The split, so that a result can be traced to its images: classes, labeled images, and a count of the others.

    earlier: the lines of the first tasks, where those are another run's.
    """
    lines = [
        {"classes": list(task.classes), "labeled": task.labeled.tolist(), "unlabeled_images": len(task.unlabeled)}
        for task in tasks[len(earlier) :]
    ]
    facts = {"dataset": source.name, "fingerprint": source.fingerprint, "class_names": list(source.class_names)}
    return facts | {"train_images": len(source.train), "tasks": [*earlier, *lines]}


def read_tasks(folder: Path) -> dict[str, Any]:
    """Return what tasks.json says: what :func:`describe_tasks` gave, in runs of older versions less of it."""
    path = folder / "tasks.json"
    try:
        recorded = json.loads(path.read_text())
        return recorded | {"tasks": list(recorded["tasks"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} can't be read ({error}): is {folder} the whole folder of a run?") from error


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


def new_folder(folder: Path | None, config: Config) -> Path:
    """The folder of a new run, made; one that holds a run already is refused."""
    if folder is None:
        name = f"{config.dataset.split('/')[-1].removeprefix('folder:')}-{config.method}-seed{config.seed}"
        folder = unused_folder(Path("runs") / name)
    if folder.exists() and not _nothing_to_lose(folder):
        raise ConfigError(f"--out {folder} is not empty: continue it with --resume {folder}, or choose another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {folder} can't be created: {error.strerror}; choose another folder") from error
    return folder


def _nothing_to_lose(folder: Path) -> bool:
    """An empty folder, or one whose run ended before its first checkpoint."""
    ours = {"config.yaml", "plan.json", "tasks.json", "command.txt", "metrics.jsonl", "checkpoint", "memory"}
    ours |= {events.FOLDER, "earlier.json", "snapshots"}
    if not folder.is_dir():
        return False
    names = {path.name.replace(".new", "").removeprefix(".") for path in folder.iterdir()}
    return names <= ours and not (folder / "checkpoint" / "state.pt").exists()


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
    if not path.exists():
        raise ConfigError(
            f"{folder} is not a run: {path.name} is not in it; nothing was saved yet, or it is another folder"
        )
    return configs.read(path)


def refuse_changes(folder: Path, recorded: dict[str, Any], wanted: Config) -> None:
    """A resumed run keeps its settings, apart from those that may move."""
    found = build.differences(recorded, build.plain(wanted))
    shown = "; ".join(
        f"{key} is {there!r} there, {here!r} was asked for" for key, there, here in found if key not in MOVABLE
    )
    if shown:
        raise ConfigError(f"{folder} was started with another configuration: {shown}. Start a new run for that")


def with_absolute_paths(config: Config) -> Config:
    """So that a run can be resumed from anywhere."""
    paths = {name: getattr(config, name) for name in ("data_dir", "cache_dir", "class_list")}
    paths["labels"] = config.labels if LabelBudget.parse(config.labels).file else None
    absolute: dict[str, Any] = {name: str(Path(p).expanduser().resolve()) for name, p in paths.items() if p is not None}
    if config.dataset.startswith("folder:"):
        absolute["dataset"] = f"folder:{Path(config.dataset.removeprefix('folder:')).expanduser().resolve()}"
    return replace(config, **absolute)
