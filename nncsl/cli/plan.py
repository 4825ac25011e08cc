"""``nncsl plan``: how a run would fit into an amount of memory, without training."""

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
        "measure a few small steps and print how a run would fit into --memory-budget",
        "nncsl plan --preset cifar10 --memory-budget 1GB",
        "nncsl plan --preset imagenet100 --memory-budget 8GB --json",
    )
    add_settings(parser, list(SETTINGS))
    parser.add_argument("--json", action="store_true", help="the plan as JSON instead of a table")


def _plan(arguments: argparse.Namespace) -> int:
    import json
    import sys

    from nncsl import planner
    from nncsl.runs import find_device
    from nncsl.terminal import Screen

    config = configuration(arguments)
    if config.memory_budget is None:
        raise ConfigError("nncsl plan needs --memory-budget, e.g. --memory-budget 2GB")
    plan = planner.without_training(config, find_device(config.device), lambda text: print(text, file=sys.stderr))
    if arguments.json:
        print(json.dumps(planner.as_record(plan), indent=2))
    else:
        planner.describe_plan(plan, Screen())
    return 0
