"""``nncsl methods``: the systems that can be compared."""

import argparse
from typing import Any

from nncsl.cli.settings import command


def add(commands: Any) -> None:
    """Declares the command."""
    command(
        commands,
        "methods",
        _methods,
        "list what --method takes, with each method's own settings",
        "nncsl methods",
    )


def _methods(arguments: argparse.Namespace) -> int:
    from dataclasses import fields

    from rich.table import Table

    from nncsl.methods import METHODS
    from nncsl.terminal import Screen

    table = Table("method", "what it is", "own settings (--set own.KEY=VALUE)")
    for name, method in METHODS.items():
        table.add_row(name, (method.__doc__ or "").split("\n")[0], ", ".join(f.name for f in fields(method.Settings)))
    Screen().print(table)
    return 0
