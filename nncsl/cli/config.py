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
        "print the resolved settings as yaml",
        "nncsl config --preset cifar100 --set epochs=10",
    )
    add_settings(parser, list(SETTINGS))


def _config(arguments: argparse.Namespace) -> int:
    from nncsl.config import dump
    from nncsl.data.catalog import check_known

    config = configuration(arguments)
    check_known(config)
    print(dump(config), end="")
    return 0
