"""``nncsl plan``: how long a run would take, and how it would fit into memory or into what it may keep."""

import argparse
import sys
from typing import Any

from nncsl.cli.settings import SETTINGS, add_settings, command, configuration


def add(commands: Any) -> None:
    """Declares the command."""
    parser = command(
        commands,
        "plan",
        _plan,
        "measure a few small steps: how long would a run take, how would it fit into --memory-budget or --keep",
        "nncsl plan --preset cifar10",
        "nncsl plan --preset cifar10 --memory-budget 1GB",
        "nncsl plan --preset imagenet100 --memory-budget 8GB --json",
    )
    add_settings(parser, list(SETTINGS))
    parser.add_argument("--json", action="store_true", help="the plan as JSON instead of a table")


def _plan(arguments: argparse.Namespace) -> int:
    import json

    from nncsl import methods, planner
    from nncsl.data.catalog import open_data
    from nncsl.planner import keeping
    from nncsl.runs import find_device
    from nncsl.terminal import Screen, Waiting

    config = methods.settled(configuration(arguments))
    device = find_device(config.device)
    if config.keep is not None:
        config = keeping.within_keep(
            config, *open_data(config), lambda text: print(text, file=sys.stderr if arguments.json else sys.stdout)
        )
    with Waiting(Screen(stderr=True)) as waiting:
        plan = planner.without_training(config, device, waiting.say, waiting.note) if config.memory_budget else None
        chosen = planner.planned(config, plan) if plan else config
        time = planner.time_without_training(chosen, device, waiting.say)
    if arguments.json:
        print(json.dumps({**(planner.as_record(plan) if plan else {}), **time.record}, indent=2))
        return 0
    console = Screen()
    if plan:
        planner.describe_plan(plan, console)
    console.print(time.table)
    console.print(time.sentence, highlight=False, markup=False, soft_wrap=True)
    return 0
