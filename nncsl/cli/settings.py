"""What the commands share: how one is declared, and how flags become a configuration."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nncsl.cli import names
from nncsl.errors import ConfigError, shown
from nncsl.files import check_path, check_text

_LARGEST = 2**31 - 1


def a_path(text: str) -> str:
    """Return the path of a file or folder as it was given, if a run can have it: it is written into text files."""
    return _accepted(text, check_text, check_path)


def an_image(text: str) -> str:
    """Return the path of something that is only read, if a file system could take it: any bytes may be its name."""
    return _accepted(text, check_path)


def _accepted(text: str, *checks: Callable[[str, str], None]) -> str:
    try:
        for check in checks:
            check(text, "path")
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def a_number(text: str) -> int:
    """Return the whole number that was given, if it could be one of anything."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a whole number") from None
    if abs(value) > _LARGEST:
        raise argparse.ArgumentTypeError(f"{shown(value)} is too large: expected at most {_LARGEST:,}")
    return value


# Flags that are settings under another spelling: flag -> (setting, type, help).
SETTINGS: dict[str, tuple[str, Callable[[str], Any], str]] = {
    "--dataset": ("dataset", str, "digits, cifar10, cifar100, imagenet100; your own: folder:PATH, csv:FILE, hf:PATH"),
    "--data-dir": ("data_dir", a_path, "the folder that holds the data set"),
    "--method": ("method", str, f"what learns (default: nncsl): {', '.join(names.methods())}"),
    "--teacher-mode": (
        "teacher_mode",
        str,
        "features: the bank (default); model: the paper's copy; none: no distillation",
    ),
    "--tasks": ("tasks", str, "number of tasks, or how many classes each has: 4,3,3"),
    "--labels": (
        "labels",
        str,
        "0.8%%, 4/class, one of these for each task (100%%,5%%,0%%), or a file of image names or indices",
    ),
    "--skip-unreadable": ("skip_unreadable", bool, "leave out images that can't be decoded, instead of stopping"),
    "--memory": ("memory", int, "replay memory in images; 0 for none"),
    "--keep": ("keep", str, "e.g. 40MB beside the network: choose the memory's size and the bank's settings to fit"),
    "--epochs": ("epochs", int, "epochs per task"),
    "--seed": ("seed", int, "decides labels, views, order and initial weights"),
    "--device": ("device", str, "auto, cpu or cuda"),
    "--bank-views": ("bank_views", int, "view slots per kind in the feature bank"),
    "--bank-codec": ("bank_codec", str, "fp32, fp16, int8, int4 or pq"),
    "--memory-budget": ("memory_budget", str, "e.g. 2GB: choose the settings below, and the bank's place, to fit"),
    "--micro-batch": ("micro_batch", int, "images with activations at once, same gradient; 0: the whole batch"),
    "--recompute": ("recompute", bool, "keep block inputs only and compute the rest again, same gradient"),
}


def command(commands: Any, name: str, run: Callable[..., int], summary: str, *examples: str) -> argparse.ArgumentParser:
    """A parser for one command; ``run`` gets the parsed arguments and returns the exit code."""
    parser = _described(commands, name, summary, examples)
    parser.set_defaults(run=run)
    return parser


def group(commands: Any, name: str, summary: str, *examples: str) -> Any:
    """A command that has commands of its own: what they are declared on."""
    return _described(commands, name, summary, examples).add_subparsers(required=True, metavar="WHAT")


def _described(commands: Any, name: str, summary: str, examples: tuple[str, ...]) -> argparse.ArgumentParser:
    return commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog="examples:\n  " + "\n  ".join(examples),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_settings(parser: argparse.ArgumentParser, flags: list[str]) -> None:
    """Declares --preset, the given ones of SETTINGS, and --set."""
    parser.add_argument("--preset", help=f"starting point (default: by data set): {', '.join(names.presets())}")
    for flag in flags:
        key, kind, summary = SETTINGS[flag]
        if kind is bool:
            parser.add_argument(flag, dest=key, action="store_const", const=True, help=summary)
        else:
            parser.add_argument(flag, dest=key, type=kind, metavar=key.upper(), help=summary)
    if "--dataset" not in flags:
        parser.set_defaults(dataset=None)
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="any setting, e.g. network.width=32; repeatable"
    )


def configuration(arguments: argparse.Namespace) -> Any:
    """The :class:`nncsl.config.Config` that the flags ask for."""
    from nncsl.config import load, preset_for
    from nncsl.data.sources import own_place

    given = overrides(arguments)
    kind, place = own_place(arguments.dataset or "")
    if arguments.preset is None and kind == "folder" and place is not None:
        given = [_fitting(place, given), *given]
    return load(arguments.preset or preset_for(arguments.dataset), given)


def _fitting(place: Path, given: list[dict[str, Any]]) -> dict[str, Any]:
    """What the size of a user's own images asks for, unless the sizes of views are given."""
    from nncsl.config.scaling import settings_for
    from nncsl.data.folders import typical_short_side

    if any(_sizes_views(override.get("views", {})) for override in given):
        return {}
    short_side = typical_short_side(place)
    return {} if short_side is None else settings_for(short_side)


def _sizes_views(views: Any) -> bool:
    """Whether a value for ``views`` gives a size; one that is no mapping is left to those who refuse it."""
    crops = [views.get(name) for name in ("large", "small")] if isinstance(views, dict) else [views]
    return any(not isinstance(crop, dict) or "size" in crop for crop in crops if crop is not None)


def overrides(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Named flags first, then --set in the order given, so that --set has the last word."""
    from nncsl.config.build import parse_assignment

    named = {key: getattr(arguments, key, None) for key, _, _ in SETTINGS.values()}
    given = {key: value for key, value in named.items() if value is not None}
    return [given, *map(parse_assignment, arguments.set)]
