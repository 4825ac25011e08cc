"""Adding tasks to a finished run: a new run that begins where that one ended. The finished one is only read."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from nncsl import config as configs
from nncsl import distributed, evaluation, files, methods
from nncsl.config import Config, build
from nncsl.data.division import divided
from nncsl.data.labels import LabelBudget
from nncsl.data.sources import Source
from nncsl.data.tasks import Task
from nncsl.errors import ConfigError, UserError
from nncsl.methods.base import Method
from nncsl.record import archives, checkpoint, checksums, earlier, remembered
from nncsl.record import folder as run_folder
from nncsl.record.earlier import Earlier
from nncsl.record.journal import Journal
from nncsl.record.owner import Owner, owning
from nncsl.record.state import RunState
from nncsl.runs.opening import find_device
from nncsl.runs.training import resume

# What belongs to the new tasks, besides where data lies and what computes.
OPEN = ("dataset", "tasks", "task_sizes", "labels", "class_list", "test_fraction", "verify_data", "skip_unreadable",
        "max_pixels", "memory", "epochs", "warmup_epochs")  # fmt: skip


@dataclass(frozen=True)
class Finished:
    """A run that has learned all its tasks: what its folder says, and its last checkpoint."""

    folder: Path
    config: Config
    tasks: dict[str, Any]
    saved: dict[str, Any]
    state: RunState

    @classmethod
    def read(cls, folder: Path) -> "Finished":
        """Return the run in ``folder``; a UserError says why it can't be continued."""
        config, tasks = run_folder.read_config(folder), run_folder.read_tasks(folder)
        if reason := methods.find(config.method).uncontinued(grown=False):
            raise UserError(f"{folder} can't be continued: {reason}")
        if not (folder / "summary.json").exists():
            raise UserError(f"{folder} is not finished: nncsl train --resume {folder}, then continue it")
        saved = checkpoint.load(folder / "checkpoint" / "state.pt")
        if saved["format"] != checkpoint.FORMAT or "train_images" not in tasks:
            raise UserError(
                f"{folder} was trained by an older nncsl, which did not keep what later tasks need: train it anew"
            )
        return cls(folder, config, tasks, saved, RunState.unpack(saved["state"]))


def extend(
    finished: Path,
    overrides: list[dict[str, Any]],
    folder: Path | None = None,
    *,
    quiet: bool = False,
    report: bool = False,
    tensorboard: bool = False,
    command: str | None = None,
    again: bool = False,
) -> dict[str, Any]:
    """Train tasks of new classes after those of the run in ``finished``; return the summary of the run in ``folder``.

    overrides: the new tasks' data, and how they are divided; what else a run was started with stays.
    folder: default: beside the finished run. The rest as in :func:`nncsl.runs.start`.
    """
    ranks = distributed.connect()

    def begin() -> Path:
        if again and folder is not None and (folder / "checkpoint" / "state.pt").exists():
            return folder
        return prepare(Finished.read(finished), overrides, folder, command)

    return resume(ranks.first(begin), [], quiet=quiet, report=report, tensorboard=tensorboard)


@owning
def prepare(
    owner: Owner, finished: Finished, overrides: list[dict[str, Any]], folder: Path | None, command: str | None
) -> Path:
    """Make the folder of a run that has learned the finished one's tasks and is about to begin the new ones."""
    config, before = new_settings(finished, overrides)
    source, tasks = earlier.open_continued(finished.folder, config, before)
    config = with_room(config, finished, tuple(len(task.classes) for task in tasks))
    method, state = brought_forward(finished, config, source, tasks)
    if folder is None:
        folder = run_folder.unused_folder(finished.folder.with_name(f"{finished.folder.name}-continued"))
    folder = run_folder.new_folder(folder, config)
    owner.take(folder)
    print(f"{finished.folder}: {len(before.tasks)} tasks, {len(before.class_names)} classes; going on in {folder}")

    copies = [remembered.path_of(finished.folder, state.memory, method.keeps())]
    copies += (finished.folder / "snapshots").glob("task-[0-9]*.npz")
    if config.memory_budget and config.memory_budget == finished.config.memory_budget:
        copies.append(finished.folder / "plan.json")
    for path in copies:
        name = path.relative_to(finished.folder).as_posix()
        checksums.check(finished.folder, name, archives.LARGEST)
        with files.written_beside(folder / name, before_rename=checksums.listing(folder, name)) as beside:
            shutil.copyfile(path, beside)
    described = run_folder.describe_tasks(source, tasks, before.tasks)
    checksums.write_text(folder, "tasks.json", json.dumps(described) + "\n")
    checksums.write_text(folder, "metrics.jsonl", _journal(finished.folder, len(tasks)))
    checksums.write_text(folder, "config.yaml", configs.dump(config))
    if command:
        checksums.write_text(folder, "command.txt", command + "\n")
    earlier.write(folder, before)
    # The last one: from here on the run can be resumed.
    contents = {"config": build.plain(config), "state": state.pack(), "method": method.state_dict()}
    checkpoint.save(folder / "checkpoint" / "state.pt", finished.saved | contents)
    return folder


def new_settings(finished: Finished, overrides: list[dict[str, Any]]) -> tuple[Config, Earlier]:
    """Return the settings of all tasks together, and what is known of those that are over."""
    given: dict[str, Any] = {}
    for override in overrides:
        given = build.merge(given, configs.renamed(override))
    started, lines = build.plain(finished.config), finished.tasks["tasks"]
    count, labels = given.get("tasks", 1), str(given.get("labels", finished.config.labels))
    if not isinstance(count, int) or count < 1:
        raise ConfigError(f"tasks={count!r}: expected how many tasks the new classes make, 1 or more")
    if "labels" not in given and (LabelBudget.parse(labels).by_task or LabelBudget.parse(labels).file):
        raise ConfigError(f"{finished.folder} had labels={labels}: say with --labels how many the new classes have")
    if len(LabelBudget.parse(labels).each) not in (1, count):
        raise ConfigError(f"labels={labels!r}: expected one budget, or one for each of {count} new tasks")
    elsewhere = {"class_list": None} if "dataset" in given else {}  # the list is that of the data set before
    wanted = build.merge(started | elsewhere, given)
    wanted |= {"tasks": len(lines) + count, "task_sizes": None}
    wanted["labels"] = _all_labels(finished.config.labels, len(lines), labels, count)
    if isinstance(epochs := given.get("epochs"), int) and "warmup_epochs" not in given:
        wanted["warmup_epochs"] = min(started["warmup_epochs"], epochs // 2)
    config = run_folder.with_absolute_paths(build.typed(Config, wanted))
    fixed = [key for key, _, _ in build.differences(started, wanted) if key not in (*OPEN, *run_folder.MOVABLE)]
    if fixed:
        raise ConfigError(
            f"{fixed[0]} can't change in a run that is continued: {finished.folder} was trained with "
            f"{_value(started, fixed[0])!r}. What can: {', '.join(OPEN)}, and where it computes"
        )
    if LabelBudget.parse(labels).file:
        labels = str(Path(labels).expanduser().resolve())
    past = earlier.read(finished.folder)
    stages = [*(past.stages if past else ()), earlier.last_stage(finished.config, finished.tasks, past)]
    return config, Earlier(str(finished.folder.resolve()), lines, stages, count, labels, given.get("task_sizes"))


def with_room(config: Config, finished: Finished, sizes: tuple[int, ...]) -> Config:
    """Return the settings with the sizes of all tasks, and with more of the head's outputs where those are too few."""
    num_classes = sum(sizes)
    outputs, order = finished.config.head_outputs, finished.config.class_order
    if num_classes > outputs:
        if reason := methods.find(config.method).uncontinued(grown=True):
            raise UserError(
                f"{finished.folder} has {outputs} outputs, too few for {num_classes} classes, and can't get more: "
                f"{reason}. Train it anew with --set head_outputs={num_classes} or more"
            )
        config = methods.with_outputs(replace(config, head_outputs=0), num_classes)
    if order is not None:
        config = replace(config, class_order=(*order, *range(len(order), num_classes)))
    return replace(config, task_sizes=None if sizes == divided(num_classes, len(sizes)) else sizes)


def brought_forward(
    finished: Finished, config: Config, source: Source, tasks: tuple[Task, ...]
) -> tuple[Method, RunState]:
    """Return the method after its last task so far, and the state that it would have had with more tasks to come."""
    device, state, new = find_device(config.device), finished.state, tasks[len(finished.tasks["tasks"]) :]
    method = methods.build(config, source.num_classes).to(device)
    state.untrained += evaluation.untrained_accuracy(method, source, new, config.views, device)
    saved, outputs = finished.saved, (finished.config.head_outputs, config.head_outputs)
    if outputs[1] > outputs[0]:
        like = methods.build(config, source.num_classes)
        methods.begin_again(like, tasks, state)
        saved = saved | {"method": grown(saved["method"], like.state_dict(), *outputs)}
    methods.restore(method, saved, tasks, state)
    scores, labels = evaluation.output_scores(method, source, config.views, device)
    state.ahead.append(evaluation.accuracy_ahead(scores, labels, new[0]))
    state.accuracy_matrix = [row + [0.0] * len(new) for row in state.accuracy_matrix]  # unseen: never predicted
    return method, state


def grown(saved: Mapping[str, Tensor], like: Mapping[str, Tensor], old: int, new: int) -> dict[str, Tensor]:
    """Return saved tensors with room for more classes: sides of ``old`` outputs become sides of ``new`` ones.

    like: the same tensors as they begin with the new number. What is added comes from there; 0 in a table of images.
    """
    made = dict(saved)
    for name, value in saved.items():
        begun = like.get(name)
        if begun is None or begun.ndim != value.ndim:
            continue
        sides = [new if pair == (old, new) else pair[0] for pair in zip(value.shape, begun.shape, strict=True)]
        if sides != list(value.shape):
            made[name] = begun.clone() if sides == list(begun.shape) else value.new_zeros(sides)
            made[name][tuple(slice(side) for side in value.shape)] = value
    return made


def _all_labels(old: str, old_tasks: int, new: str, new_tasks: int) -> str:
    """The label budgets of all tasks, as far as one setting can say it; of files the new one."""
    if (old == new and "," not in new) or LabelBudget.parse(new).file:
        return new
    if LabelBudget.parse(old).file:
        return new.split(",")[0]
    each = [
        (text.split(",") if "," in text else [text] * tasks) for text, tasks in ((old, old_tasks), (new, new_tasks))
    ]
    return ",".join([*each[0], *each[1]])


def _journal(folder: Path, tasks: int) -> str:
    """The finished run's lines, as they would be with more tasks."""
    lines = Journal(folder / "metrics.jsonl").read()
    for line in lines:
        if line["kind"] == "task":
            line["accuracy"] += [0.0] * (tasks - len(line["accuracy"]))
    return "".join(json.dumps(line) + "\n" for line in lines)


def _value(settings: Any, key: str) -> Any:
    for part in key.split("."):
        settings = settings[part]
    return settings
