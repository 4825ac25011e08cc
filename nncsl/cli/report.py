"""``nncsl report``: runs for people to look at."""

import argparse
from pathlib import Path
from typing import Any

from nncsl.cli.settings import a_path, command


def add(commands: Any) -> None:
    """Declares the command."""
    parser = command(
        commands,
        "report",
        _report,
        "an HTML page of a run, or of several runs beside each other",
        "nncsl report runs/digits-nncsl-seed0",
        "nncsl report runs/* -o comparison.html",
    )
    parser.add_argument("runs", nargs="+", type=a_path, metavar="RUN", help="the folder of a run, finished or not")
    parser.add_argument(
        "-o",
        "--out",
        type=a_path,
        metavar="FILE",
        help="where it goes (default: RUN/report.html; of several runs, ./report.html)",
    )


def _report(arguments: argparse.Namespace) -> int:
    from nncsl import report
    from nncsl.terminal import Screen

    with Screen(stderr=True).status("drawing the report"):  # seen on a terminal alone: projections take seconds
        path = report.write([Path(run) for run in arguments.runs], Path(arguments.out) if arguments.out else None)
    print(path)
    return 0
