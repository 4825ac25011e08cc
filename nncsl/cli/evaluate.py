"""``nncsl eval``: how good a run's checkpoint is."""

import argparse
from pathlib import Path
from typing import Any

from nncsl.cli.settings import a_path, command


def add(commands: Any) -> None:
    """Declares the command."""
    parser = command(
        commands,
        "eval",
        _evaluate,
        "evaluate a run's checkpoint: linear head, and nearest neighbours among the memory",
        "nncsl eval runs/digits-nncsl-seed0",
    )
    parser.add_argument("run_folder", type=a_path, metavar="DIR", help="the folder of a run")


def _evaluate(arguments: argparse.Namespace) -> int:
    import json

    from nncsl.runs import evaluate

    print(json.dumps(evaluate(Path(arguments.run_folder)), indent=2))
    return 0
