"""A run and its folder: starting, resuming, summarizing and evaluating it again."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

import kernels
from featurebank.errors import BankError
from nncsl import checkpoint, engine, evaluation, methods, metrics, planning, teachers, typed
from nncsl import config as configs
from nncsl.budget import baseline
from nncsl.config import Config, parse_bytes
from nncsl.data.catalog import open_data
from nncsl.data.labels import LabelBudget
from nncsl.data.sources import Source
from nncsl.data.tasks import Task
from nncsl.errors import ConfigError, UserError
from nncsl.interruption import Interrupted
from nncsl.progress import Reporter
from nncsl.state import RunState
from nncsl.versions import versions

MEMORY_PARTS = ("student", "gradients", "optimizer", "activations", "teacher", "bank", "data")


class RunInterrupted(UserError):
    """The run stopped on request, with everything saved."""


def start(config: Config, folder: Path | None, *, quiet: bool = False) -> dict[str, Any]:
    """Trains from the beginning in ``folder`` (default: a new one below runs/); returns the summary."""
    method = methods.find(config.method)
    if method.one_task:
        config = replace(config, tasks=1, class_order=None)
    config = _with_absolute_paths(config)
    device = find_device(config.device)
    source, tasks = open_data(config)
    folder = _new_folder(folder, config)
    config, base = _within_budget(config, source, tasks, folder, device)
    checkpoint.write_text(folder / "config.yaml", configs.dump(config))
    checkpoint.write_text(folder / "tasks.json", _describe_tasks(source, tasks))
    return _train(config, source, tasks, folder, device, None, base, quiet=quiet)


def resume(folder: Path, overrides: list[dict[str, Any]], *, quiet: bool = False) -> dict[str, Any]:
    """Continues the run in ``folder``. Where data lies and what computes may be said anew; other settings stay."""
    started = typed.plain(_read_config(folder))
    wanted = started
    for override in overrides:
        wanted = typed.merge(wanted, override)
    config = _with_absolute_paths(typed.build(Config, wanted))
    _refuse_changes(folder, started, config)
    if (folder / "summary.json").exists():
        print(f"{folder} is complete")
        return json.loads((folder / "summary.json").read_text())
    device = find_device(config.device)
    saved = checkpoint.load(folder / "checkpoint" / "state.pt")
    _refuse_changes(folder / "checkpoint", saved["config"], config)
    source, tasks = open_data(config)
    if (folder / "tasks.json").read_text() != _describe_tasks(source, tasks):
        raise ConfigError(
            f"{folder / 'tasks.json'} records other tasks than {config.dataset} gives now: has its data changed?"
        )
    base = 0
    if config.memory_budget != started["memory_budget"]:
        codec = config.bank_codec  # that of the bank that is there
        config, base = _within_budget(config, source, tasks, folder, device)
        config = replace(config, bank_codec=codec)
    elif config.memory_budget:
        base = baseline(config, device, folder, source.nbytes)
    return _train(config, source, tasks, folder, device, saved, base, quiet=quiet)


def evaluate(folder: Path) -> dict[str, Any]:
    """Accuracies of a run's last checkpoint: by the linear head, and by soft nearest neighbours among the memory."""
    config = _read_config(folder)
    saved = checkpoint.load(folder / "checkpoint" / "state.pt")
    state = RunState.unpack(saved["state"])
    source, tasks = open_data(config)
    device = find_device(config.device)
    network = engine.build_network(config, source).to(device)
    network.load_state_dict(saved["network"])
    trained = min(state.task + bool(state.epoch + state.step), len(tasks))
    if not trained:
        raise UserError(f"{folder} has not been trained yet: there is nothing to evaluate")
    seen = torch.zeros(source.num_classes, dtype=torch.bool)
    seen[[c for task in tasks[:trained] for c in task.classes]] = True
    logits, labels = evaluation.test_logits(network, source, config.views, device)
    shown = tasks[:trained]
    result: dict[str, Any] = {"tasks": trained, "linear": evaluation.accuracy_by_task(logits, labels, shown, seen)}
    ids = np.concatenate([state.memory.ids, *(task.labeled for task in tasks[state.task : trained])])
    if len(ids):
        arguments = (config.views, device, teachers.unit_projections)
        supports = evaluation.answers(network, source.train, ids, *arguments)
        queries = evaluation.answers(network, source.test, np.arange(len(source.test)), *arguments)
        known = torch.from_numpy(source.train_labels[ids])
        probabilities = kernels.snn(queries, supports, known, num_classes=source.num_classes, temperature=config.tau)
        result["nearest_neighbours"] = evaluation.accuracy_by_task(probabilities, labels, shown, seen)
    return result


def find_device(name: str) -> torch.device:
    """auto, cpu, cuda or cuda:N."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device={name!r}: expected auto, cpu or cuda") from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device={name!r}: expected auto, cpu or cuda")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device={name!r}: {torch.cuda.device_count()} CUDA devices were found; use --device cpu or auto"
        )
    return device


def summarize(state: RunState, config: Config) -> dict[str, Any]:
    """summary.json: accuracies in percent, memory in bytes."""
    matrix = state.accuracy_matrix
    return {
        "method": config.method,
        "teacher_mode": config.teacher_mode,
        "dataset": config.dataset,
        "accuracy_matrix": matrix,
        "average_accuracy": metrics.average_accuracy(matrix),
        "seen_accuracy": state.seen_accuracy,
        "average_incremental_accuracy": metrics.average_incremental_accuracy(state.seen_accuracy),
        "fwt": metrics.forward_transfer(state.ahead, state.untrained[1:]),
        "bwt": metrics.backward_transfer(matrix),
        "forgetting": metrics.forgetting(matrix),
        "seconds": state.seconds,
        "images_per_second": state.images / max(state.seconds, 1e-9),
        "peak_memory": state.peak_memory,
        "seed": config.seed,
        "versions": versions(),
    }


def _train(
    config: Config,
    source: Source,
    tasks: tuple[Task, ...],
    folder: Path,
    device: torch.device,
    saved: dict[str, Any] | None,
    base: int,
    *,
    quiet: bool,
) -> dict[str, Any]:
    if device.type == "cuda":  # or a resumed run could not end bit for bit as an uninterrupted one
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    with Reporter(len(tasks), config.epochs, quiet=quiet) as reporter:
        run = engine.Run(config, source, tasks, folder, device, reporter)
        reporter.say(f"{config.method} on {source.name}, {device}, in {folder}" + (" (resumed)" if saved else ""))
        try:
            _, state = engine.train(run, saved)
        except Interrupted as error:
            raise RunInterrupted(f"interrupted; continue with: nncsl train --resume {folder}") from error
        except (BankError, OSError, ImportError) as error:  # a damaged bank, a full disk, no FAISS: said in one line
            raise UserError(f"{error}. What was saved is intact: nncsl train --resume {folder}") from error
        if config.memory_budget:
            state.peak(baseline=base, budget=parse_bytes(config.memory_budget))
        summary = summarize(state, config)
        checkpoint.write_text(folder / "summary.json", json.dumps(summary, indent=2) + "\n")
        reporter.table(f"results, in {folder}", _results(summary))
    return summary


def _results(summary: dict[str, Any]) -> list[tuple[str, str]]:
    memory = summary["peak_memory"]
    parts = [f"{name} {size / 1e6:.1f}" for name, size in memory.items() if name in MEMORY_PARTS]
    rows = [
        ("average accuracy", f"{summary['average_accuracy']:.1f}%"),
        ("average incremental accuracy", f"{summary['average_incremental_accuracy']:.1f}%"),
        ("forgetting", f"{summary['forgetting']:.1f}"),
        ("backward / forward transfer", f"{summary['bwt']:.1f} / {summary['fwt']:.1f}"),
        ("training", f"{summary['seconds']:.0f} s, {summary['images_per_second']:.0f} images/s"),
        ("peak memory", f"{memory['total'] / 1e6:.0f} MB ({', '.join(parts)})"),
    ]
    if "budget" in memory:
        own = memory["total"] - memory["baseline"]
        verdict = "" if own <= 1.05 * memory["budget"] else ": EXCEEDED; please report this run's plan.json"
        rows.append(("memory budget", f"{own / 1e6:.0f} of {memory['budget'] / 1e6:.0f} MB used{verdict}"))
    return rows


def _within_budget(
    config: Config, source: Source, tasks: tuple[Task, ...], folder: Path, device: torch.device
) -> tuple[Config, int]:
    """The settings that --memory-budget asks for, shown and kept in the run's folder; and the plan's baseline."""
    if config.memory_budget is None:
        return config, 0
    plan = planning.for_run(config, source, tasks, device, folder, print)
    planning.describe_plan(plan, Console())
    checkpoint.write_text(folder / "plan.json", json.dumps(planning.as_record(plan), indent=2) + "\n")
    return planning.planned(config, plan), plan.baseline


def _describe_tasks(source: Source, tasks: tuple[Task, ...]) -> str:
    """The split, so that a result can be traced to its images: classes, labeled images, and a count of the others."""
    lines = [
        {"classes": list(task.classes), "labeled": task.labeled.tolist(), "unlabeled_images": len(task.unlabeled)}
        for task in tasks
    ]
    return json.dumps({"dataset": source.name, "fingerprint": source.fingerprint, "tasks": lines}) + "\n"


def _new_folder(folder: Path | None, config: Config) -> Path:
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
    ours = {"config.yaml", "plan.json", "tasks.json", "metrics.jsonl", "checkpoint"}
    names = {path.name.removesuffix(".new") for path in folder.iterdir()} if folder.is_dir() else {"a file"}
    return names <= ours and not (folder / "checkpoint" / "state.pt").exists()


def _unused_folder(name: str) -> Path:
    """runs/name, or with the first number behind it that is free."""
    folder, number = Path("runs") / name, 1
    while folder.exists():
        number += 1
        folder = Path("runs") / f"{name}-{number}"
    return folder


def _read_config(folder: Path) -> Config:
    path = folder / "config.yaml"
    if not path.exists():
        raise ConfigError(
            f"{folder} is not a run: {path.name} is not in it; nothing was saved yet, or it is another folder"
        )
    return configs.read(path)


def _refuse_changes(folder: Path, recorded: dict[str, Any], wanted: Config) -> None:
    movable = (
        "data_dir",
        "cache_dir",
        "device",
        "memory_budget",
        "micro_batch",
        "recompute",
        "spill",
        "bank_residency",
    )
    found = typed.differences(recorded, typed.plain(wanted))
    shown = "; ".join(
        f"{key} is {there!r} there, {here!r} was asked for" for key, there, here in found if key not in movable
    )
    if shown:
        raise ConfigError(f"{folder} was started with another configuration: {shown}. Start a new run for that")


def _with_absolute_paths(config: Config) -> Config:
    """So that a run can be resumed from anywhere."""
    paths = {name: getattr(config, name) for name in ("data_dir", "cache_dir", "class_list")}
    paths["labels"] = config.labels if LabelBudget.parse(config.labels).file else None
    absolute: dict[str, Any] = {name: str(Path(p).expanduser().resolve()) for name, p in paths.items() if p is not None}
    if config.dataset.startswith("folder:"):
        absolute["dataset"] = f"folder:{Path(config.dataset.removeprefix('folder:')).expanduser().resolve()}"
    return replace(config, **absolute)
