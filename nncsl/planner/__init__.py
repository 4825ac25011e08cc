"""A run's plan for its memory: what is known of the data, the settings chosen, and the table that says so."""

import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from nncsl import methods
from nncsl.config import Config
from nncsl.data.catalog import KNOWN, check_known, open_data
from nncsl.data.division import task_sizes
from nncsl.data.labels import LabelBudget
from nncsl.data.sources import Source, own_place
from nncsl.data.tasks import Task
from nncsl.errors import ConfigError
from nncsl.planner import duration, estimates
from nncsl.planner.choice import Plan, Say, make_plan, silent
from nncsl.planner.choice import baseline as baseline
from nncsl.planner.forecast import Forecast
from nncsl.planner.options import Option
from nncsl.planner.sizes import Sizes
from nncsl.record import checksums
from nncsl.record.folder import read_json
from nncsl.terminal import Screen, Waiting

PLANNED = ("micro_batch", "recompute", "spill", "bank_residency", "bank_codec")


def for_run(
    config: Config,
    source: Source,
    tasks: tuple[Task, ...],
    device: torch.device,
    folder: Path,
    say: Say,
    ranks: int = 1,
    note: Say = silent,
) -> Plan:
    """The plan of a run that is about to start in ``folder``; a budget is for each of its ``ranks``.

    note: told what is being measured, again and again.
    """
    sizes = measured_sizes(source, tasks)
    return make_plan(config, sizes, device, folder, say, data_is_open=True, ranks=ranks, note=note)


def without_training(config: Config, device: torch.device, say: Say, note: Say = silent) -> Plan:
    """The plan that a run would have. Its images are not needed: known data sets are known by their size."""
    config = methods.settled(config)
    check_known(config)
    estimates.check_network(config)
    folder = Path() if os.access(".", os.W_OK) else Path(tempfile.gettempdir())
    if _at_hand(config):
        source, tasks = open_data(config)
        return for_run(config, source, tasks, device, folder, say, note=note)
    say(f"without --data-dir: counting on {config.dataset} as it is published")
    return make_plan(config, expected_sizes(config), device, folder, say, data_is_open=False, note=note)


def time_without_training(config: Config, device: torch.device, say: Say) -> Forecast:
    """Return how long each task of a run would take on this machine."""
    config = methods.settled(config)
    check_known(config)
    if _at_hand(config):
        source, tasks = open_data(config)
        classes, works = source.num_classes, duration.of_run(config, tasks, len(source.test))
    else:
        sizes = expected_sizes(config)
        classes, works = sizes.classes, duration.expected(config, sizes)
    say(f"measuring a few small steps on {device} to tell how long a run takes ...")
    frozen = config.batchnorm == "freeze-after-first"
    rates = [duration.measured_rate(config, classes, device, frozen=later and frozen) for later in (False, True)]
    seconds = [work.total * rates[index > 0] for index, work in enumerate(works)]
    return Forecast(tuple(works), tuple(seconds), duration.advice(config, sum(seconds)))


def _at_hand(config: Config) -> bool:
    return bool(config.data_dir) or bool(own_place(config.dataset)[0]) or config.dataset == "digits"


def measured_sizes(source: Source, tasks: tuple[Task, ...]) -> Sizes:
    """Of data that is open."""
    return Sizes(
        classes=source.num_classes,
        unlabeled_per_task=max(len(task.unlabeled) for task in tasks),
        labeled_per_task=max(len(task.labeled) for task in tasks),
        data_bytes=source.nbytes,
        test_images=len(source.test),
    )


def expected_sizes(config: Config) -> Sizes:
    """Of a known data set, from its published numbers."""
    facts = KNOWN.get(config.dataset)
    if facts is None:
        raise ConfigError(f"dataset={config.dataset!r}: its size is not known; give --data-dir")
    classes = max(task_sizes(facts.classes, config.tasks, config.task_sizes, config.dataset))
    per_task = facts.train_images * classes // facts.classes
    labeled = max(
        per_task * (1 if labels.fraction is None else labels.fraction)
        if labels.per_class is None
        else classes * labels.per_class
        for labels in LabelBudget.parse(config.labels).each
    )
    return Sizes(
        classes=facts.classes,
        unlabeled_per_task=int(per_task * config.unlabeled_fraction),
        labeled_per_task=int(labeled),
        data_bytes=facts.image_bytes,
    )


def planned(config: Config, plan: Plan) -> Config:
    """The configuration with what was planned filled in."""
    chosen = plan.chosen.config
    return replace(config, **{name: getattr(chosen, name) for name in PLANNED})


def describe_plan(plan: Plan, console: Console) -> None:
    """The plan as a table: settings, memory by part, and what else was considered."""
    chosen, settings = plan.chosen, plan.chosen.config
    table = Table(title=f"Plan for {plan.budget / 1e9:g} GB", show_header=False, title_justify="left")
    table.add_column()
    table.add_column(justify="right")
    for name, value in (
        ("micro-batch", str(settings.micro_batch or "whole batch")),
        ("recompute blocks", "yes" if settings.recompute else "no"),
        ("cuts while BatchNorm trains", f"on {settings.spill}" if settings.micro_batch else "-"),
        ("bank", f"{settings.bank_codec}, {settings.bank_residency}" if settings.teacher_mode == "features" else "-"),
    ):
        table.add_row(name, value)
    table.add_section()
    for name, size in chosen.parts.items():
        table.add_row(name, f"{size / 1e6:,.0f} MB")
    table.add_row("at the peak", f"{chosen.total / 1e6:,.0f} MB of {plan.budget / 1e6:,.0f} MB")
    table.add_row("the process itself (Python, libraries), not counted", f"{plan.baseline / 1e6:,.0f} MB")
    console.print(table)
    others = Table("other ways", "peak", "time of a step", "fits", title_justify="left")
    for option in sorted((chosen, *plan.others), key=lambda option: option.seconds):
        others.add_row(*_line(option, plan))
    console.print(others)


def as_record(plan: Plan) -> dict[str, Any]:
    """The plan as plain values, for ``--json``."""
    chosen = plan.chosen
    return {
        "device": plan.device,
        "budget": plan.budget,
        "baseline": plan.baseline,
        "total": chosen.total,
        "parts": chosen.parts,
        "settings": {name: getattr(chosen.config, name) for name in PLANNED},
        "others": [{"name": o.name, "total": o.total, "time": o.seconds / chosen.seconds} for o in plan.others],
    }


def _line(option: Option, plan: Plan) -> tuple[str, str, str, str]:
    time = option.seconds / plan.chosen.seconds
    verdict = "chosen" if option is plan.chosen else ("yes" if option.total <= plan.limit else "no")
    return option.name, f"{option.total / 1e6:,.0f} MB", f"{time:.2f}x", verdict


def within_budget(
    config: Config, source: Source, tasks: tuple[Task, ...], folder: Path, device: torch.device, ranks: int = 1
) -> tuple[Config, int]:
    """The settings that --memory-budget asks for, shown and kept in the run's folder; and the plan's baseline."""
    if config.memory_budget is None:
        return config, 0
    with Waiting(Screen()) as waiting:
        plan = for_run(config, source, tasks, device, folder, waiting.say, ranks, waiting.note)
    describe_plan(plan, Screen())
    checksums.write_text(folder, "plan.json", json.dumps(as_record(plan), indent=2) + "\n")
    return planned(config, plan), plan.baseline


def planned_for(folder: Path) -> str | None:
    """The kind of device that the folder's plan was made for."""
    plan = read_json(folder, "plan.json") if (folder / "plan.json").exists() else None
    return plan.get("device", "cpu") if isinstance(plan, dict) else None


def unplanned(config: Config, overrides: list[dict[str, Any]]) -> Config:
    """The configuration with what an earlier plan may have filled in left open again, unless it is asked for now."""
    asked = {name for override in overrides for name in override}
    names = set(PLANNED) - {"bank_codec"} - asked
    return replace(config, **{name: getattr(Config, name) for name in names})
