"""Run folders, finished or not, as plain records."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nncsl import metrics
from nncsl.config import Config, build, ranges, renamed
from nncsl.errors import UserError, shown
from nncsl.files import read_text
from nncsl.record import checksums
from nncsl.record.folder import read_json, read_tasks
from nncsl.record.journal import read_lines

_LARGEST = 1e18
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
        known = [line for line in self.epochs if _is_number(line.get(name))]
        return [(line["task"] * each + line["epoch"] + 1, line[name]) for line in known]


def collect(folder: Path) -> RunRecord:
    """Reads a run's folder; a UserError names what is missing or damaged."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder: expected the folder of a run, e.g. one below runs/")
    if not (folder / "config.yaml").exists():
        raise UserError(f"{folder} is not a run: no config.yaml in it; expected a folder that `nncsl train` wrote")
    config = _config(folder)
    lines = read_lines(folder)
    recorded = read_tasks(folder) if (folder / "tasks.json").exists() else {"tasks": []}
    tasks = recorded["tasks"]
    summary = _summary(folder) if (folder / "summary.json").exists() else None
    command = _command(folder) if (folder / "command.txt").exists() else None
    done = [line for line in lines if line["kind"] == "task"]
    progress = _progress(folder) if summary is None else summary
    _check_accuracies(folder, [line.get("accuracy") for line in done], [line.get("seen_accuracy") for line in done])
    return RunRecord(
        folder=folder,
        config=config,
        tasks=tuple(tuple(task["classes"]) for task in tasks),
        labeled=tuple(len(task["labeled"]) for task in tasks),
        unlabeled=tuple(task.get("unlabeled_images", 0) for task in tasks),
        left_out=tuple(map(str, recorded.get("left_out", ()))),
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


def _config(folder: Path) -> dict[str, Any]:
    """The settings as they were written, also by a version that had others; what the report counts with is checked."""
    path = folder / "config.yaml"
    checksums.check(folder, path.name)
    config = build.parse_yaml(read_text(path), f"{path} is damaged, copy the run anew: it")
    if not isinstance(config, Mapping) or not {"method", "dataset", "epochs", "tasks"} <= set(config):
        raise UserError(f"{path} is not the configuration of a run: method or dataset is missing")
    settings = {str(key): value for key, value in renamed(config).items()}
    rows = ranges.rows_of(Config)
    for key, kind in (("method", str), ("dataset", str), ("epochs", int), ("tasks", int), ("seed", int)):
        value = settings.get(key, getattr(Config, key, None))
        if not isinstance(value, kind) or isinstance(value, bool):
            raise UserError(f"{path} is damaged: {key}={shown(value)}, expected {kind.__name__}")
        ranges.check_value(rows[key], value, f"{path}: {key}")
    return settings


def _command(folder: Path) -> str:
    checksums.check(folder, "command.txt")
    return read_text(folder / "command.txt").strip()


def _summary(folder: Path) -> dict[str, Any]:
    """What a run wrote when it ended."""
    path = folder / "summary.json"
    summary = read_json(folder, path.name)
    if not isinstance(summary, dict):
        raise UserError(f"{path} is damaged: expected a mapping; copy the run anew")
    _check_accuracies(path, summary.get("accuracy_matrix"), summary.get("seen_accuracy"))
    memory, versions = summary.get("peak_memory", {}), summary.get("versions", {})
    numbers = [summary.get("seconds", 0), summary.get("images_per_second", 0)]
    numbers += memory.values() if isinstance(memory, dict) else [None]
    if not all(map(_is_number, numbers)) or not isinstance(versions, dict):
        raise UserError(f"{path} is damaged: times, sizes or versions are none; copy the run anew")
    return summary


def _check_accuracies(path: Path, matrix: Any, seen: Any) -> None:
    """Refuse what is not a row of percentages for each task, and a percentage for each."""
    rows = [*matrix, seen] if isinstance(matrix, list) else [None]
    if not all(isinstance(row, list) and all(each is None or _is_number(each) for each in row) for row in rows):
        raise UserError(f"{path} is damaged: expected rows of accuracies; copy the run anew")
    if len(seen) != len(matrix) or any(len(row) != len(matrix[0]) or len(row) < len(matrix) for row in matrix):
        raise UserError(f"{path} is damaged: its accuracies are not one for each task; copy the run anew")


def _is_number(value: Any) -> bool:
    """Whether this is a number that can be drawn."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST


def _progress(folder: Path) -> dict[str, Any]:
    """Time and memory of a run that has not ended, from its checkpoint."""
    path = folder / "checkpoint" / "state.pt"
    if not path.exists():
        return {}
    from nncsl.record import checkpoint

    state = checkpoint.load(path)["state"]
    with checkpoint.understood(path):
        rate = state["images"] / max(state["seconds"], 1e-9)
        return {"seconds": state["seconds"], "images_per_second": rate, "peak_memory": dict(state["peak_memory"])}
