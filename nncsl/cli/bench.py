"""``nncsl bench``: the benchmarks, without knowing their module names."""

import argparse
from typing import Any

from nncsl.cli.settings import command

_BENCHMARKS = ("kernels", "bank", "views", "step", "methods", "memory", "budget", "ranks", "gpu")


def add(commands: Any) -> None:
    """Declares the command."""
    parser = command(
        commands,
        "bench",
        _bench,
        "run a benchmark on this machine",
        "nncsl bench views",
        "nncsl bench kernels --help",
    )
    parser.description = "Runs python -m nncsl.benchmarks.NAME."
    parser.add_argument("benchmark", choices=_BENCHMARKS)
    parser.add_argument("rest", nargs=argparse.REMAINDER, help="passed on to the benchmark; try --help")


def _bench(arguments: argparse.Namespace) -> int:
    from importlib import import_module

    return import_module(f"nncsl.benchmarks.{arguments.benchmark}").main(arguments.rest)
