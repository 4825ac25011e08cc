"""Everything that a GPU has to be asked, in one command: one file to send back.

``nncsl bench gpu`` runs the parts below one after the other, each in a process of its own (one that crashes does not
take the others along), and writes nncsl-gpu-NAME.json into the current folder: about 25 minutes, 5 with ``--quick``.

    limits     what the device reaches in products and copies: what the other figures are compared with
    parity     kernels on the device against fp64 on the CPU, beside plain torch's own error
    kernels    snn and nnd_loss against plain torch, torch.compile and SDPA, in fp32 and bf16
    views      rendered views per second at CIFAR's and ImageNet's sizes
    training   `nncsl train` at the cifar10 preset's sizes: teachers, precisions, graphs, micro-batches

Nothing is downloaded; the images are tiles of two photos unless --data-dir has CIFAR-10.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from nncsl.files import write_text
from nncsl.version import versions

from . import gpu_training
from .gpu_parts import kernel_times, limits, parity, view_rates
from .provenance import current_commit, processor

PARTS: dict[str, tuple[Callable[[argparse.Namespace], Any], int]] = {  # with minutes, as far as they can be guessed
    "limits": (limits, 1),
    "parity": (parity, 2),
    "kernels": (kernel_times, 10),
    "views": (view_rates, 2),
    "training": (gpu_training.modes, 10),
}


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    options = _parser().parse_args(argv)
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("no CUDA or ROCm device was found by torch; --device cpu tries the command itself on a CPU")
    if options.part:
        print(json.dumps(PARTS[options.part][0](options)))
        return 0
    out = options.out or Path(f"nncsl-gpu-{re.sub(r'[^a-z0-9]+', '-', device_name(options.device).lower())}.json")
    report: dict[str, Any] = {"machine": machine(options.device), "quick": options.quick, "parts": {}}
    for name in options.parts:
        minutes = 1 if options.quick else PARTS[name][1]
        print(f"{name} (about {minutes} min) ...", flush=True)
        report["parts"][name] = in_own_process(name, argv)
        write_text(out, json.dumps(report, indent=1) + "\n")
    show(report)
    failed = [name for name, part in report["parts"].items() if "error" in part]
    print(
        f"wrote {out}: please attach it to an issue" + (f"; these parts failed: {', '.join(failed)}" if failed else "")
    )
    return int(bool(failed))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="nncsl bench gpu", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer sizes and repetitions")
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS), help="default: all")
    parser.add_argument("--data-dir", type=Path, help="folder with cifar-10-batches-bin (default: tiles of two photos)")
    parser.add_argument("--preset", default="cifar10", help="whose network and batch trains (default: %(default)s)")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--out", type=Path, help="file to write (default: nncsl-gpu-NAME.json)")
    parser.add_argument("--part", choices=list(PARTS), help=argparse.SUPPRESS)
    return parser


def in_own_process(name: str, argv: list[str]) -> dict[str, Any]:
    """Return a part's findings, or the end of what it said before it failed."""
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as log:
        command = [sys.executable, "-m", "nncsl.benchmarks.gpu", *argv, "--part", name]
        compiled = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, text=True, check=False, env=compiled)
        seconds = round(time.monotonic() - began, 1)
        if done.returncode:
            log.seek(0)
            return {"error": log.read()[-4000:] or f"ended with {done.returncode}", "seconds": seconds}
    return {"found": json.loads(done.stdout.splitlines()[-1]), "seconds": seconds}


def device_name(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else processor()


def machine(device: str) -> dict[str, Any]:
    """Return what one needs to know to read the figures."""
    facts: dict[str, Any] = {
        "device": device_name(device),
        "processor": processor(),
        "python": platform.python_version(),
        "versions": versions(),
        "commit": current_commit(),
    }
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        facts |= {"memory_bytes": properties.total_memory, "processors": properties.multi_processor_count}
        facts |= {"cuda": torch.version.cuda, "hip": torch.version.hip, "driver": _driver()}
    return facts


def _driver() -> str:
    try:
        query = ["nvidia-smi", "--query-gpu=driver_version,clocks.max.sm,power.limit", "--format=csv,noheader"]
        return subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""


def show(report: dict[str, Any]) -> None:
    """Print every part's rows as a table."""
    console = Console()
    for name, part in report["parts"].items():
        if "error" in part:
            console.print(f"{name} failed: {part['error'].strip().splitlines()[-1]}", markup=False)
            continue
        rows = part["found"]
        table = Table(*rows[0], title=name, title_justify="left")
        for row in rows:
            table.add_row(*(f"{value:.4g}" if isinstance(value, float) else str(value) for value in row.values()))
        console.print(table)


if __name__ == "__main__":
    sys.exit(main())
