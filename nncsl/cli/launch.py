"""``nncsl train --ranks N``: torchrun's launcher for one machine, without its reports."""

import argparse
import logging
import os
import shlex
import sys
import tempfile
from pathlib import Path

from nncsl.errors import UserError


def launch(arguments: argparse.Namespace) -> int:
    """Run the same command in N processes; return rank 0's exit code."""
    if arguments.ranks < 1 or arguments.max_restarts < 0:
        raise UserError(f"--ranks {arguments.ranks} --max-restarts {arguments.max_restarts}: expected 1 and 0 or more")
    if arguments.max_restarts and not (arguments.out or arguments.resume):
        raise UserError("--max-restarts needs --out or --resume: a restarted run has to know its folder")
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    from nncsl.exchange import RankLostError

    logging.disable(logging.ERROR)  # the launcher's: the ranks say themselves what happened

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // arguments.ranks)))
    with tempfile.TemporaryDirectory(prefix="nncsl-ranks-") as logs:
        settings = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=arguments.ranks,
            max_restarts=arguments.max_restarts,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            monitor_interval=0.2,
            logs_specs=DefaultLogsSpecs(log_dir=logs),
            run_id=Path(logs).name,
        )
        try:
            elastic_launch(settings, sys.executable)(
                "-m", "nncsl", *without_launching(shlex.split(arguments.typed)[1:])
            )
        except ChildFailedError as error:
            code = max(failure.exitcode for failure in error.failures.values())
            if code > 0:
                return code
            killed = ", ".join(f"rank {rank} by signal {-failure.exitcode}" for rank, failure in error.failures.items())
            raise RankLostError(f"killed: {killed}. What was saved is intact and can be resumed") from error
        except SignalException:  # the ranks have been told and have ended
            return 130
    return 0


def without_launching(words: list[str]) -> list[str]:
    """Return a command's words without the flags that are for the launcher."""
    kept: list[str] = []
    flags = ("--ranks", "--max-restarts")
    for place, word in enumerate(words):
        if word.split("=")[0] not in flags and (not place or words[place - 1] not in flags):
            kept.append(word)
    return kept
