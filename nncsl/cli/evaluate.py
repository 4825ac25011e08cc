"""``nncsl eval``: how good a run's checkpoint is."""

import argparse
from pathlib import Path
from typing import Any

from nncsl.cli.settings import a_path, command

_NAMES = {"linear": "linear head", "nearest_neighbours": "nearest neighbors"}  # as people call them


def add(commands: Any) -> None:
    """Declares the command."""
    parser = command(
        commands,
        "eval",
        _evaluate,
        "evaluate a run's checkpoint: linear head, and nearest neighbours among the memory",
        "nncsl eval runs/digits-nncsl-seed0",
        "nncsl eval runs/digits-nncsl-seed0 --json",
    )
    parser.add_argument("run_folder", type=a_path, metavar="DIR", help="the folder of a run")
    parser.add_argument("--json", action="store_true", help="for programs")


def _evaluate(arguments: argparse.Namespace) -> int:
    from nncsl.runs import evaluate
    from nncsl.terminal import Screen

    with Screen(stderr=True).status(f"measuring {arguments.run_folder}"):  # seen on a terminal alone
        found = evaluate(Path(arguments.run_folder))
    if arguments.json:
        import json

        print(json.dumps(found, indent=2))
        return 0
    Screen().print(accuracy_table(found))
    return 0


def accuracy_table(found: dict[str, Any]) -> Any:
    """Return what :func:`nncsl.runs.evaluate` found as a table: a row per task, then means and chance."""
    from rich.table import Table

    ways = [way for way in _NAMES if way in found]
    title = f"percent correct on each task's test images, {found['classes']} classes to choose from"
    table = Table("task", title=title, title_justify="left")
    for way in ways:
        table.add_column(_NAMES[way], justify="right")
    for task in range(found["tasks"]):
        table.add_row(str(task + 1), *(_percent(found[way][task]) for way in ways))
    table.add_section()
    table.add_row("mean", *(_percent(found["mean"][way]) for way in ways))
    table.add_row("chance", *(f"{found['chance']:.1f}" for _ in ways))
    return table


def _percent(value: float | None) -> str:
    """A dash where the test images are gone: those of tasks before a continued run's own may be."""
    return "-" if value is None else f"{value:.1f}"
