"""``nncsl metrics``: a run's curve for spreadsheets and plotting programs."""

import argparse
from pathlib import Path
from typing import Any

from nncsl.cli.settings import a_path, command


def add(commands: Any) -> None:
    """Declares the command."""
    parser = command(
        commands,
        "metrics",
        _metrics,
        "write a run's losses and accuracies as csv: one row per epoch and per task",
        "nncsl metrics runs/digits-nncsl-seed0",
        "nncsl metrics runs/digits-nncsl-seed0 --out metrics.csv",
    )
    parser.add_argument("run_folder", type=a_path, metavar="DIR", help="the folder of a run")
    parser.add_argument("--out", "-o", type=a_path, metavar="FILE", help="where to (default: standard output)")


def _metrics(arguments: argparse.Namespace) -> int:
    from nncsl.files import write_text
    from nncsl.record.journal import table

    text = table(Path(arguments.run_folder))
    if arguments.out is None:
        print(text, end="")
        return 0
    write_text(Path(arguments.out), text)
    print(arguments.out)
    return 0
