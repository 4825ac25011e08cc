"""``nncsl config``: what a run would use."""

import argparse
from typing import Any

from nncsl.cli.settings import SETTINGS, add_settings, command, configuration


def add(commands: Any) -> None:
    """Declares the command."""
    parser = command(
        commands,
        "config",
        _config,
        "print the resolved settings as yaml, or explain what can be set",
        "nncsl config --preset cifar100 --set epochs=10",
        "nncsl config --explain lr_peak",
    )
    add_settings(parser, list(SETTINGS))
    parser.add_argument(
        "--explain",
        nargs="?",
        const="",
        metavar="KEY",
        help="instead: meaning, unit, range and default of a setting (or of views, network.*, own.*), or of all",
    )


def _config(arguments: argparse.Namespace) -> int:
    from nncsl.config import dump, explain
    from nncsl.data.catalog import check_known

    if arguments.explain is not None:
        print("\n".join(explain.lines(arguments.explain or None)))
        return 0

    config = configuration(arguments)
    check_known(config)
    print(dump(config), end="")
    return 0
