"""``nncsl data``: list, prepare and look at data sets."""

import argparse
from pathlib import Path
from typing import Any

from nncsl.cli.settings import a_path, add_settings, command, configuration, group


def add(commands: Any) -> None:
    """Declares the command and its three parts."""
    parts = group(
        commands,
        "data",
        "list, prepare and look at data sets",
        "nncsl data list",
        "nncsl data show --out sheets",
    )
    command(parts, "list", _list, "the data sets, their protocol and what they need", "nncsl data list")
    prepare = command(
        parts,
        "prepare",
        _prepare,
        "download or decode a data set and check it",
        "nncsl data prepare cifar10 --data-dir DATA",
        "nncsl data prepare folder:my-images --set cache_short_side=64",
    )
    prepare.add_argument("dataset", help="digits, cifar10, cifar100, imagenet100, folder:PATH, csv:FILE or hf:PATH")
    add_settings(prepare, ["--data-dir", "--skip-unreadable"])
    show = command(
        parts,
        "show",
        _show,
        "write PNG sheets of labeled images and of one image's views",
        "nncsl data show --preset cifar10 --data-dir DATA --out sheets",
    )
    add_settings(show, ["--dataset", "--data-dir", "--tasks", "--labels", "--skip-unreadable", "--seed"])
    show.add_argument("--out", type=a_path, metavar="DIR", default=".", help="where the PNG files go (default: here)")


def _list(arguments: argparse.Namespace) -> int:
    from nncsl.data.catalog import describe

    for line in describe():
        print(line)
    return 0


def _prepare(arguments: argparse.Namespace) -> int:
    from nncsl.data.catalog import prepare

    print(prepare(configuration(arguments)))
    return 0


def _show(arguments: argparse.Namespace) -> int:
    from nncsl.data.sheets import write_sheets

    for path in write_sheets(configuration(arguments), Path(arguments.out)):
        print(path)
    return 0
