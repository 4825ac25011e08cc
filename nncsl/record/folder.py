"""A run's folder: where it lies, what it was started with, and what may change when it goes on."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from nncsl import config as configs
from nncsl import files
from nncsl.config import Config, build
from nncsl.data.labels import LabelBudget
from nncsl.data.sources import Source
from nncsl.data.tasks import Task
from nncsl.errors import ConfigError
from nncsl.record import tensorboard as events

# Where data lies, what computes, and how much memory that takes: none of it decides what a run learns.
MOVABLE = ("data_dir", "cache_dir", "device", "memory_budget", "micro_batch", "recompute", "spill", "bank_residency",
           "prefetch", "cuda_graph", "ranks_timeout")  # fmt: skip


def describe_tasks(source: Source, tasks: tuple[Task, ...]) -> str:
    """The split, so that a result can be traced to its images: classes, labeled images, and a count of the others."""
    lines = [
        {"classes": list(task.classes), "labeled": task.labeled.tolist(), "unlabeled_images": len(task.unlabeled)}
        for task in tasks
    ]
    return json.dumps({"dataset": source.name, "fingerprint": source.fingerprint, "tasks": lines}) + "\n"


def read_tasks(folder: Path) -> list[dict[str, Any]]:
    """Return the tasks that were recorded: of each its ``classes`` and its ``labeled`` images."""
    path = folder / "tasks.json"
    content = files.read_json(path)
    tasks = content.get("tasks") if isinstance(content, dict) else None
    listed = tasks if isinstance(tasks, list) and all(isinstance(task, dict) for task in tasks) else [{}]
    numbers = [task.get(key) for task in listed for key in ("classes", "labeled")]
    order = [label for task in listed for label in task.get("classes") or ()] if all(map(_counts, numbers)) else None
    if not order or sorted(order) != list(range(len(order))):
        raise ConfigError(f"{path} is damaged: it does not say which classes are whose; copy the run anew")
    return listed


def _counts(numbers: Any) -> bool:
    """Whether this is a list of numbers of images or classes."""
    return isinstance(numbers, list) and all(type(number) is int and 0 <= number < 2**31 for number in numbers)


def new_folder(folder: Path | None, config: Config) -> Path:
    """The folder of a new run, made; one that holds a run already is refused."""
    if folder is None:
        folder = _unused_folder(
            f"{config.dataset.split('/')[-1].removeprefix('folder:')}-{config.method}-seed{config.seed}"
        )
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
    ours.add(events.FOLDER)
    if not folder.is_dir():
        return False
    names = {path.name.replace(".new", "").removeprefix(".") for path in folder.iterdir()}
    return names <= ours and not (folder / "checkpoint" / "state.pt").exists()


def _unused_folder(name: str) -> Path:
    """runs/name, or with the first number behind it that is free."""
    folder, number = Path("runs") / name, 1
    while folder.exists():
        number += 1
        folder = Path("runs") / f"{name}-{number}"
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
    absolute: dict[str, Any] = {
        name: str(files.expanded(p, absolute=True)) for name, p in paths.items() if p is not None
    }
    if config.dataset.startswith("folder:"):
        absolute["dataset"] = f"folder:{files.expanded(config.dataset.removeprefix('folder:'), absolute=True)}"
    return replace(config, **absolute)
