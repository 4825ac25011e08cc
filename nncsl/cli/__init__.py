"""The ``nncsl`` command: parses, calls, says how it ended. One file per command, one name each in ``COMMANDS``."""

import argparse
import os
import shlex
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Any

from nncsl.cli import (
    bank,
    bench,
    completion,
    config,
    data,
    doctor,
    evaluate,
    export,
    methods,
    metrics,
    names,
    plan,
    predict,
    pretrain,
    report,
    train,
)
from nncsl.errors import UserError
from nncsl.terminal import guarded_output
from nncsl.version import __version__

# In the order in which the help shows them.
COMMANDS = (
    train,
    pretrain,
    plan,
    evaluate,
    predict,
    export,
    report,
    metrics,
    methods,
    config,
    data,
    bank,
    bench,
    doctor,
    completion,
)

_EXIT_CODES = """exit codes: 0 done; 1 an image that can't be read (all others are predicted), or an error inside
nncsl; 2 a wrong flag, setting, data file or folder (one line says which); 3 a damaged file of a run or bank;
4 another rank ended or can't be reached, 130 interrupted (in both cases a run can be resumed)"""
_RANK_LOST = 4


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code."""
    # GNU OpenMP's threads wait for each other in a busy loop, by default for so long that a core shared with another
    # process loses most of its time to it. Read when torch is loaded, which no command has done yet.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    with guarded_output():
        return _run(sys.argv[1:] if argv is None else argv)


def _run(words: Sequence[str]) -> int:
    main_thread = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    try:
        if main_thread:
            signal.signal(signal.SIGTERM, _terminated)  # the loop over steps has its own way
        arguments = build_parser().parse_args(words)
        arguments.typed = shlex.join(["nncsl", *words])
        code = arguments.run(arguments) or 0
        sys.stdout.flush()  # here, where a closed pipe is no error
        return code
    except UserError as error:
        if os.environ.get("RANK", "0") == "0" or error.exit_code == _RANK_LOST:  # rank 0 may be the lost one
            print("nncsl: " + str(error).replace("\n", "\n  "), file=sys.stderr)  # a name can't begin a line of ours
        return error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it flushes at its end
        return 0
    except KeyboardInterrupt:
        print("nncsl: interrupted", file=sys.stderr)
        return 130
    finally:
        if main_thread:
            signal.signal(signal.SIGTERM, before)


def _terminated(*_: object) -> None:
    """End as after Ctrl-C."""
    raise KeyboardInterrupt


class _Version(argparse.Action):
    def __call__(self, *_: Any) -> None:
        from nncsl.version import versions

        print("\n".join(f"{name:<12}{value}" for name, value in versions().items()))
        raise SystemExit(0)


def build_parser() -> argparse.ArgumentParser:
    """Everything that ``nncsl`` takes."""
    parser = argparse.ArgumentParser(
        prog="nncsl",
        description=f"nncsl {__version__}: continual semi-supervised learning with few labels and little memory.",
        epilog=f"{names.overview()}\n\n{names.wrapped(_EXIT_CODES)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--version", action=_Version, nargs=0, help="versions of everything involved and the device found"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add(commands)
    return parser
