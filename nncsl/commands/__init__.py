"""The commands of ``nncsl``, in the order in which the help shows them: one file each, one line each here."""

from typing import Any

from nncsl.commands import bank, bench, completion, config, data, evaluate, metrics, plan, report, train

GROUPS = (train, plan, evaluate, report, metrics, config, data, bank, bench, completion)


def add_all(commands: Any) -> None:
    """Declares every command on what ``ArgumentParser.add_subparsers`` returned."""
    for group in GROUPS:
        group.add(commands)
