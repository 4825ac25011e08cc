"""``nncsl pretrain``: a backbone from images alone, without labels and without a download."""

import argparse
import sys
from dataclasses import replace
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
    from nncsl import networks, runs
    from nncsl.config import build, load, preset_for
    from nncsl.errors import ConfigError
    from nncsl.export.backbone import write_backbone
    from nncsl.methods import settled
    from nncsl.networks.weights import sha256
    from nncsl.record import folder as run_folder

    given = [{"method": "pretrain"}, *overrides(arguments)]
    config = settled(load(arguments.preset or preset_for(arguments.dataset), given))
    name = Path(config.dataset.removeprefix("folder:")).name
    target = Path(arguments.out or f"backbone-{name}.safetensors")
    if target.suffix != ".safetensors":
        raise ConfigError(f"--out {target}: expected a name that ends with .safetensors")
    if target.exists():
        raise ConfigError(f"--out {target} is there already: choose another name, or remove it to train anew")
    folder = target.with_suffix(".pretraining")
    try:
        if (folder / "checkpoint" / "state.pt").exists():
            config = run_folder.with_absolute_paths(config)
            config = replace(config, network=networks.pinned(config.network))
            run_folder.refuse_changes(folder, build.plain(run_folder.read_config(folder)), config)
            runs.resume(folder, [], quiet=arguments.quiet)
        else:
            runs.start(config, folder, quiet=arguments.quiet, command=arguments.typed)
    except runs.RunInterrupted:
        print(f"nncsl: interrupted; the same command goes on from {folder}", file=sys.stderr)
        return 130
    facts = write_backbone(folder, target)
    print(f"{target}: {facts['epochs']} epochs on {facts['images']:,} images of {facts['dataset']}, without labels")
    print(f"sha256 {sha256(target)}")
    return 0
