"""``nncsl pretrain``: a backbone from images alone, without labels and without a download."""

import argparse
import sys
from pathlib import Path
from typing import Any

from nncsl.cli.settings import add_settings, command, overrides

_FLAGS = [
    "--dataset",
    "--data-dir",
    "--epochs",
    "--seed",
    "--device",
    "--memory-budget",
    "--micro-batch",
    "--recompute",
]


def add(commands: Any) -> None:
    """Declares the command."""
    parser = command(
        commands,
        "pretrain",
        _pretrain,
        "train a backbone without labels, for --set network.weights=FILE; the same command again goes on",
        "nncsl pretrain --dataset digits --epochs 20 --out digits.safetensors",
        "nncsl train --set network.weights=digits.safetensors --set network.frozen=true",
    )
    add_settings(parser, _FLAGS)
    parser.add_argument(
        "--out", metavar="FILE", help="the file of weights, .safetensors (default: backbone-DATASET.safetensors)"
    )
    parser.add_argument("--quiet", action="store_true", help="plain lines instead of progress bars")


def _pretrain(arguments: argparse.Namespace) -> int:
    from nncsl.config import load, preset_for
    from nncsl.export import backbone
    from nncsl.networks.weights import sha256
    from nncsl.runs import RunInterrupted

    given = [{"method": "pretrain"}, *overrides(arguments)]
    config = load(arguments.preset or preset_for(arguments.dataset), given)
    name = Path(config.dataset.removeprefix("folder:")).name
    target = Path(arguments.out or f"backbone-{name}.safetensors")
    try:
        facts = backbone.pretrain(config, given, target, quiet=arguments.quiet, command=arguments.typed)
    except RunInterrupted:
        print(f"nncsl: interrupted; the same command goes on in {backbone.training_folder(target)}", file=sys.stderr)
        return 130
    print(f"{target}: {facts['epochs']} epochs on {facts['images']:,} images of {facts['dataset']}, without labels")
    print(f"sha256 {sha256(target)}")
    return 0
