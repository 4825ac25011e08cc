"""``nncsl doctor``: what this machine has, what does not fit together, and what will be slow."""

import argparse
from pathlib import Path
from typing import Any

from nncsl.cli.settings import command


def add(commands: Any) -> None:
    """Declares the command."""
    command(
        commands,
        "doctor",
        _doctor,
        "look at versions, devices, conflicts between packages and the disk, and say what will be slow",
        "nncsl doctor",
    )


def _doctor(arguments: argparse.Namespace) -> int:
    from nncsl.doctor import report

    print(report(Path.cwd()))
    return 0
