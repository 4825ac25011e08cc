"""``nncsl export``: what a run has learned, for other programs."""

import argparse
from pathlib import Path
from typing import Any

from nncsl.cli.settings import a_path, command


def add(commands: Any) -> None:
    """Declares the command."""
    parser = command(
        commands,
        "export",
        _export,
        "write a run's prediction to a file for other programs: .safetensors, .onnx or .pt2",
        "nncsl export runs/digits-nncsl-seed0 --to model.onnx",
        "nncsl export runs/digits-nncsl-seed0 --to model.safetensors",
    )
    parser.add_argument("run_folder", type=a_path, metavar="RUN", help="the folder of a run")
    parser.add_argument("--to", required=True, type=a_path, metavar="FILE", help="its ending decides the format")


def _export(arguments: argparse.Namespace) -> int:
    from nncsl.export import export
    from nncsl.use import Model

    facts = export(Model.open(arguments.run_folder, device="cpu"), arguments.to)
    shape = ", ".join(map(str, facts["input"]["shape"]))
    print(f"{arguments.to}: {Path(arguments.to).stat().st_size:,} bytes")
    print(f"pixels [{shape}]: {facts['input']['what']}")
    print(f"scores and probabilities [n, {len(facts['classes'])}]: {', '.join(facts['classes'])}")
    return 0
