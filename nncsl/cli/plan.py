"""``nncsl plan``: how a run would fit into an amount of memory, or of what it may keep, without training."""

import argparse
from typing import Any

from nncsl.cli.settings import SETTINGS, add_settings, command, configuration
from nncsl.errors import ConfigError


def add(commands: Any) -> None:
    """Declares the command."""
    parser = command(
        commands,
        "plan",
        _plan,
        "print how a run would fit into --memory-budget, by a few small steps, or into --keep",
        "nncsl plan --preset cifar10 --memory-budget 1GB",
        "nncsl plan --preset imagenet100 --memory-budget 8GB --json",
    )
    add_settings(parser, list(SETTINGS))
    parser.add_argument("--json", action="store_true", help="the plan as JSON instead of a table")


def _plan(arguments: argparse.Namespace) -> int:
    import json
    import sys

    from rich.console import Console

    from nncsl import methods, planner
    from nncsl.data.catalog import open_data
    from nncsl.planner import keeping
    from nncsl.runs import find_device

    config = methods.settled(configuration(arguments))
    if config.memory_budget is None and config.keep is None:
        raise ConfigError("nncsl plan needs --memory-budget or --keep, e.g. --memory-budget 2GB")

    def say(text: str) -> None:
        print(text, file=sys.stderr if arguments.json else sys.stdout)

    if config.keep is not None:
        config = keeping.within_keep(config, *open_data(config), say)
    if config.memory_budget is None:
        return 0
    plan = planner.without_training(config, find_device(config.device), lambda text: print(text, file=sys.stderr))
    if arguments.json:
        print(json.dumps(planner.as_record(plan), indent=2))
    else:
        planner.describe_plan(plan, Console())
    return 0
