"""The commands of ``nncsl``, in the order in which the help shows them: one file each, one line each here."""

from typing import Any

from nncsl.commands import bench, config, data, evaluate, plan, train

GROUPS = (train, plan, evaluate, config, data, bench)


def add_all(commands: Any) -> None:
    """Declares every command on what ``ArgumentParser.add_subparsers`` returned."""
    for group in GROUPS:
        group.add(commands)
