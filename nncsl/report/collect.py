"""Run folders, finished or not, as plain records."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from nncsl import metrics
from nncsl.config import renamed
from nncsl.errors import UserError
from nncsl.record import checksums
from nncsl.record.journal import read_lines

_NOT_CURVES = ("kind", "task", "epoch", "lr", "images_per_second", "unlabeled_accuracy", "phase")


@dataclass(frozen=True)
class RunRecord:
    """What a run's folder says. Of a run that has not ended: what is known by now.

    matrix: a row per finished task, percent, None where a task's test images were gone; seen: accuracy over the classes
    seen after each, None likewise; memory: peak bytes by part; kept: bytes kept beside the student in each finished
    task, by part and "total"; epochs: metrics.jsonl's epoch lines; tasks: each task's classes; labeled, unlabeled: its
    numbers of images; left_out: images that can't be read.
    """

    folder: Path
    config: dict[str, Any]
    tasks: tuple[tuple[int, ...], ...]
    labeled: tuple[int, ...]
    unlabeled: tuple[int, ...]
    left_out: tuple[str, ...]
    epochs: tuple[dict[str, Any], ...]
    matrix: tuple[tuple[float | None, ...], ...]
    seen: tuple[float | None, ...]
    seconds: float | None
    images_per_second: float | None
    memory: dict[str, int]
    summary: dict[str, Any] | None
    command: str | None
    kept: tuple[dict[str, int], ...] = ()

    @property
    def complete(self) -> bool:
        return self.summary is not None

    @property
    def finished(self) -> int:
        """How many tasks are done."""
        return len(self.matrix)

    @property
    def average_accuracy(self) -> float | None:
        """Over all tasks; of an unfinished run, over those it has met."""
        return metrics.average_accuracy([self.matrix[-1][: self.finished]]) if self.matrix else None

    @property
    def average_incremental_accuracy(self) -> float | None:
        return metrics.average_incremental_accuracy(self.seen) if self.seen else None

    @property
    def forgetting(self) -> float | None:
        return metrics.forgetting(self.matrix) if self.matrix else None

    @property
    def unmeasured(self) -> str:
        """A sentence about what is not known, "" where all is."""
        return "Where there is no number, the test images of an earlier task were gone." if None in self.seen else ""

    @property
    def losses(self) -> list[str]:
        """The loss parts that were recorded, in the order in which they first appear."""
        return list(dict.fromkeys(key for line in self.epochs for key in line if key not in _NOT_CURVES))

    @property
    def memory_parts(self) -> dict[str, int]:
        """Peak bytes of each part, without the whole and what it was held against."""
        return {name: size for name, size in self.memory.items() if name not in ("total", "baseline", "budget")}

    def curve(self, name: str) -> list[tuple[float, float]]:
        """(epochs since the run began, value) for every epoch that recorded a finite one."""
        # A method with several phases may have more epochs in a task than are configured.
        each = max([int(self.config["epochs"]), *(line["epoch"] + 1 for line in self.epochs)])
        known = [line for line in self.epochs if math.isfinite(line.get(name, math.nan))]
        return [(line["task"] * each + line["epoch"] + 1, line[name]) for line in known]


def collect(folder: Path) -> RunRecord:
    """Reads a run's folder; a UserError names what is missing or damaged."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder: expected the folder of a run, e.g. one below runs/")
    if not (folder / "config.yaml").exists():
        raise UserError(f"{folder} is not a run: no config.yaml in it; expected a folder that `nncsl train` wrote")
    config = _read(folder, "config.yaml", yaml.safe_load)
    if not isinstance(config, Mapping) or not {"method", "dataset", "epochs", "tasks"} <= set(config):
        raise UserError(f"{folder / 'config.yaml'} is not the configuration of a run: method or dataset is missing")
    lines = read_lines(folder)
    tasks = _read(folder, "tasks.json", json.loads) or {"tasks": []}
    summary = _read(folder, "summary.json", json.loads)
    command = _read(folder, "command.txt", str.strip)
    done = [line for line in lines if line["kind"] == "task"]
    progress = _progress(folder) if summary is None else summary
    return RunRecord(
        folder=folder,
        config=renamed(config),
        tasks=tuple(tuple(task["classes"]) for task in tasks["tasks"]),
        labeled=tuple(len(task["labeled"]) for task in tasks["tasks"] if "labeled" in task),
        unlabeled=tuple(task.get("unlabeled_images", 0) for task in tasks["tasks"]),
        left_out=tuple(tasks.get("left_out", ())),
        epochs=tuple(line for line in lines if line["kind"] == "epoch"),
        matrix=tuple(map(tuple, summary["accuracy_matrix"] if summary else (line["accuracy"] for line in done))),
        seen=tuple(summary["seen_accuracy"] if summary else (line["seen_accuracy"] for line in done)),
        seconds=progress.get("seconds"),
        images_per_second=progress.get("images_per_second"),
        memory=dict(progress.get("peak_memory", {})),
        summary=summary,
        command=command,
        kept=tuple(line["kept"] for line in done if "kept" in line),
    )


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings under dotted keys, as ``--set`` takes them."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + str(key): value}
    return found


def _read(folder: Path, name: str, parse: Any) -> Any:
    """The parsed file, None if there is none."""
    path = folder / name
    if not path.exists():
        return None
    checksums.check(folder, name)
    try:
        return parse(path.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{path} can't be read ({reason}): is this the folder of a run, and undamaged?") from error


def _progress(folder: Path) -> dict[str, Any]:
    """Time and memory of a run that has not ended, from its checkpoint."""
    path = folder / "checkpoint" / "state.pt"
    if not path.exists():
        return {}
    from nncsl.record import checkpoint

    state = checkpoint.load(path)["state"]
    rate = state["images"] / max(state["seconds"], 1e-9)
    return {"seconds": state["seconds"], "images_per_second": rate, "peak_memory": state["peak_memory"]}
