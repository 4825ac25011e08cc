"""``nncsl train``: start a run, go on with one that was interrupted, or add tasks to one that is finished."""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from nncsl.cli import names
from nncsl.cli.settings import SETTINGS, a_number, a_path, add_settings, command, configuration, overrides
from nncsl.errors import UserError


def add(commands: Any) -> None:
    """Declares the command."""
    parser = command(
        commands,
        "train",
        _train,
        "train over all tasks and evaluate",
        "nncsl train                                   # digits, one or two minutes",
        "nncsl train --preset cifar10 --data-dir DATA --teacher-mode features",
        "nncsl train --resume runs/digits-nncsl-seed0  # after an interruption",
        "nncsl train --continue runs/story --dataset folder:later   # adds classes to a finished run",
    )
    parser.epilog = f"{parser.epilog}\n\n{names.overview()}"
    add_settings(parser, list(SETTINGS))
    parser.add_argument(
        "--out", type=a_path, metavar="DIR", help="where the run goes (default: a new folder below runs/)"
    )
    parser.add_argument(
        "--resume", type=a_path, metavar="DIR", help="go on with the run in DIR; everything else comes from there"
    )
    parser.add_argument(
        "--continue",
        dest="finished",
        type=a_path,
        metavar="RUN",
        help="add tasks of new classes to a finished run, as a new one (default: RUN-continued); takes --dataset, "
        "--data-dir, --tasks (new ones, default 1), --labels, --memory, --epochs, --device, --out; the rest is RUN's",
    )
    parser.add_argument(
        "--previous",
        action="store_true",
        help="with --resume: from the checkpoint before the last one, if that is damaged",
    )
    parser.add_argument("--ranks", type=a_number, metavar="N", help="share the run between N processes of this machine")
    parser.add_argument(
        "--max-restarts",
        type=a_number,
        default=0,
        metavar="N",
        help="with --ranks: go on by itself after a rank has died",
    )
    parser.add_argument("--no-report", action="store_true", help="don't write DIR/report.html at the end")
    parser.add_argument(
        "--tensorboard", action="store_true", help="also write event files to DIR/tensorboard; a resumed run goes on"
    )
    parser.add_argument("--quiet", action="store_true", help="plain lines instead of progress bars")


def _train(arguments: argparse.Namespace) -> int:
    if arguments.ranks is not None and "RANK" not in os.environ:
        from nncsl.cli.launch import launch

        return launch(arguments)
    if arguments.finished and (arguments.resume or arguments.preset):
        other = "--resume" if arguments.resume else "--preset"
        raise UserError(f"--continue and {other} exclude each other: what is not said anew comes from the finished run")
    from nncsl import runs

    options: dict[str, Any] = {
        "quiet": arguments.quiet,
        "report": not arguments.no_report,
        "tensorboard": arguments.tensorboard,
    }
    try:
        if arguments.resume:
            runs.resume(Path(arguments.resume), overrides(arguments), previous=arguments.previous, **options)
            return 0
        folder = Path(arguments.out) if arguments.out else None
        options |= {"command": arguments.typed, "again": int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) > 0}
        if arguments.finished:
            runs.extend(Path(arguments.finished), overrides(arguments), folder, **options)
        else:
            runs.start(configuration(arguments), folder, **options)
    except runs.RunInterrupted as error:
        if os.environ.get("RANK", "0") == "0":
            print(f"nncsl: {error}", file=sys.stderr)
        return 130
    return 0
