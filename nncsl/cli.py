"""The ``nncsl`` command: parses, calls, prints. Everything it does lives in the modules it calls."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nncsl.errors import UserError
from nncsl.version import __version__

_EXIT_CODES = """exit codes: 0 done; 1 an error inside nncsl; 2 a wrong flag, setting, data file or folder
(one line says which); 130 interrupted (a run can be resumed)"""
_BENCHMARKS = ("kernels", "bank", "views", "step")

# Flags that are settings under another spelling: flag -> (setting, type, help).
_SETTINGS: dict[str, tuple[str, Callable[[str], Any], str]] = {
    "--dataset": ("dataset", str, "digits, cifar10, cifar100, imagenet100, or folder:PATH for your own images"),
    "--data-dir": ("data_dir", str, "the folder that holds the data set"),
    "--method": ("method", str, "what learns: nncsl, csl, csl-nofilter, paws, er, finetune, joint"),
    "--teacher-mode": (
        "teacher_mode",
        str,
        "features: the bank (default); model: the paper's copy; none: no distillation",
    ),
    "--tasks": ("tasks", int, "number of tasks; the classes must divide into it"),
    "--labels": ("labels", str, "0.8%%, 4/class, or a file of training-image indices"),
    "--memory": ("memory", int, "replay memory in images; 0 for none"),
    "--epochs": ("epochs", int, "epochs per task"),
    "--seed": ("seed", int, "decides labels, views, order and initial weights"),
    "--device": ("device", str, "auto, cpu or cuda"),
    "--bank-views": ("bank_views", int, "view slots per kind in the feature bank"),
    "--bank-codec": ("bank_codec", str, "fp32, fp16, int8 or pq"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        return arguments.run(arguments) or 0
    except UserError as error:
        print(f"nncsl: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        return 0
    except KeyboardInterrupt:
        print("nncsl: interrupted", file=sys.stderr)
        return 130


def _train(arguments: argparse.Namespace) -> int:
    from nncsl import run

    try:
        if arguments.resume:
            run.resume(Path(arguments.resume), _overrides(arguments), quiet=arguments.quiet)
        else:
            run.start(_config(arguments), Path(arguments.out) if arguments.out else None, quiet=arguments.quiet)
    except run.RunInterrupted as error:
        print(f"nncsl: {error}", file=sys.stderr)
        return 130
    return 0


def _eval(arguments: argparse.Namespace) -> int:
    import json

    from nncsl.run import evaluate

    print(json.dumps(evaluate(Path(arguments.run_folder)), indent=2))
    return 0


def _config_command(arguments: argparse.Namespace) -> int:
    from nncsl.config import dump
    from nncsl.data.catalog import check_known

    config = _config(arguments)
    check_known(config)
    print(dump(config), end="")
    return 0


def _data_list(arguments: argparse.Namespace) -> int:
    from nncsl.data.catalog import describe

    for line in describe():
        print(line)
    return 0


def _data_prepare(arguments: argparse.Namespace) -> int:
    from nncsl.data.catalog import prepare

    print(prepare(_config(arguments)))
    return 0


def _data_show(arguments: argparse.Namespace) -> int:
    from nncsl.data.sheets import write_sheets

    for path in write_sheets(_config(arguments), Path(arguments.out)):
        print(path)
    return 0


def _bench(arguments: argparse.Namespace) -> int:
    from importlib import import_module

    return import_module(f"benchmarks.{arguments.benchmark}").main(arguments.rest)


def _config(arguments: argparse.Namespace) -> Any:
    from nncsl.config import load, preset_for

    return load(arguments.preset or preset_for(arguments.dataset), _overrides(arguments))


def _overrides(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Named flags first, then --set in the order given, so that --set has the last word."""
    from nncsl.typed import parse_assignment

    named = {key: getattr(arguments, key, None) for key, _, _ in _SETTINGS.values()}
    given = {key: value for key, value in named.items() if value is not None}
    return [given, *map(parse_assignment, arguments.set)]


class _Version(argparse.Action):
    def __call__(self, *_: Any) -> None:
        from nncsl.versions import versions

        print("\n".join(f"{name:<12}{value}" for name, value in versions().items()))
        raise SystemExit(0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nncsl",
        description=f"nncsl {__version__}: continual semi-supervised learning with few labels and little memory.",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--version", action=_Version, nargs=0, help="versions of everything involved and the device found"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    train = _command(
        commands,
        "train",
        _train,
        "train over all tasks and evaluate",
        "nncsl train                                   # digits, about two minutes",
        "nncsl train --preset cifar10 --data-dir DATA --teacher-mode features",
        "nncsl train --resume runs/digits-nncsl-seed0  # after an interruption",
    )
    _add_settings(train, list(_SETTINGS))
    train.add_argument("--out", metavar="DIR", help="where the run goes (default: a new folder below runs/)")
    train.add_argument("--resume", metavar="DIR", help="continue the run in DIR; everything else comes from there")
    train.add_argument("--no-report", action="store_true", help="accepted for scripts: no report is written yet")
    train.add_argument("--quiet", action="store_true", help="plain lines instead of progress bars")

    evaluate = _command(
        commands,
        "eval",
        _eval,
        "evaluate a run's checkpoint: linear head, and nearest neighbours among the memory",
        "nncsl eval runs/digits-nncsl-seed0",
    )
    evaluate.add_argument("run_folder", metavar="DIR", help="the folder of a run")

    show = _command(
        commands,
        "config",
        _config_command,
        "print the resolved settings as yaml",
        "nncsl config --preset cifar100 --set epochs=10",
    )
    _add_settings(show, list(_SETTINGS))

    data = commands.add_parser("data", help="list, prepare and look at data sets").add_subparsers(
        required=True, metavar="WHAT"
    )
    _command(data, "list", _data_list, "the data sets, their protocol and what they need", "nncsl data list")
    prepare = _command(
        data,
        "prepare",
        _data_prepare,
        "download or decode a data set and check it",
        "nncsl data prepare cifar10 --data-dir DATA",
        "nncsl data prepare folder:my-images --set cache_short_side=64",
    )
    prepare.add_argument("dataset", help="digits, cifar10, cifar100, imagenet100 or folder:PATH")
    _add_settings(prepare, ["--data-dir"])
    sheets = _command(
        data,
        "show",
        _data_show,
        "write PNG sheets of labeled images and of one image's views",
        "nncsl data show --preset cifar10 --data-dir DATA --out sheets",
    )
    _add_settings(sheets, ["--dataset", "--data-dir", "--tasks", "--labels", "--seed"])
    sheets.add_argument("--out", metavar="DIR", default=".", help="where the PNG files go (default: here)")

    bench = commands.add_parser(
        "bench", help="run a benchmark on this machine", description="Runs python -m benchmarks.NAME."
    )
    bench.add_argument("benchmark", choices=_BENCHMARKS)
    bench.add_argument("rest", nargs=argparse.REMAINDER, help="passed on to the benchmark; try --help")
    bench.set_defaults(run=_bench)
    return parser


def _command(
    commands: Any, name: str, run: Callable[..., int], summary: str, *examples: str
) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog="examples:\n  " + "\n  ".join(examples),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    return parser


def _add_settings(parser: argparse.ArgumentParser, flags: list[str]) -> None:
    parser.add_argument(
        "--preset", help="starting point: digits, cifar10, cifar100, imagenet100 (default: by data set)"
    )
    for flag in flags:
        key, kind, summary = _SETTINGS[flag]
        parser.add_argument(flag, dest=key, type=kind, metavar=key.upper(), help=summary)
    if "--dataset" not in flags:
        parser.set_defaults(dataset=None)
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="any setting, e.g. network.width=32; repeatable"
    )


if __name__ == "__main__":
    sys.exit(main())
