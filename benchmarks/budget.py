"""Does a run keep within its --memory-budget? The real command at the cifar10 preset's sizes, watched from outside.

``python -m nncsl.benchmarks.budget --data-dir DIR`` runs ``nncsl train --preset cifar10 --memory-budget B`` for several
budgets: ResNet-18, 256 unlabeled images a step, every label and the whole training set in memory, but two tasks of one
step each, and 100 test images. The resident set is sampled every 20 ms and compared with the plan and the budget.
Writes benchmarks/results/budget.json; budgets that are recorded already are skipped.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from nncsl.config import parse_bytes
from nncsl.files import write_text

from .provenance import current_commit

RESULTS = Path(__file__).parent / "results" / "budget.json"
RECORD = 3073  # bytes of a CIFAR-10 image and its label
SETTINGS = ("tasks=2", "epochs=1", "unlabeled_fraction=0.01024", "verify_data=false", "device=cpu")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m nncsl.benchmarks.budget", description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True, help="folder with cifar-10-batches-bin")
    parser.add_argument("--budgets", nargs="+", default=["0.5GB", "1GB", "2GB", "4GB"], help="default: 0.5 to 4 GB")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="further settings, for a quick trial")
    parser.add_argument("--out", type=Path, default=RESULTS, help="JSON file (default: %(default)s)")
    options = parser.parse_args(argv)
    results = json.loads(options.out.read_text()) if options.out.exists() else []
    for budget in options.budgets:
        if any(result["budget"] == budget and result.get("command") == shown(budget, options) for result in results):
            continue
        print(f"{budget} ...", flush=True)
        results.append(watch(budget, options))
        write_text(options.out, json.dumps(results, indent=1) + "\n")
    show(results)
    return 0


def watch(budget: str, options: argparse.Namespace) -> dict[str, Any]:
    """One run in its own process, and the most memory that was seen from outside."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", ".")) as name:
        folder = Path(name)
        with_few_test_images(options.data_dir, folder / "data")
        command = [sys.executable, "-m", "nncsl", "train", "--preset", "cifar10", "--memory-budget", budget]
        command += ["--data-dir", str(folder / "data"), "--out", str(folder / "run"), "--quiet", "--no-report"]
        for assignment in (*SETTINGS, *options.set):
            command += ["--set", assignment]
        with (folder / "log").open("w") as log:
            child = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
            highest = 0
            while child.poll() is None:
                highest = max(highest, resident(child.pid))
                time.sleep(0.02)
        if child.returncode:
            refused = (folder / "log").read_text().splitlines()[-1]
            return {"budget": budget, "refused": refused, "command": shown(budget, options)}
        plan = json.loads((folder / "run" / "plan.json").read_text())
        own = json.loads((folder / "run" / "summary.json").read_text())["peak_memory"]["total"]
    return {
        "budget": budget,
        "settings": plan["settings"],
        "baseline": plan["baseline"],
        "planned": plan["total"],
        "measured": max(highest, own) - plan["baseline"],
        "of_budget": round((max(highest, own) - plan["baseline"]) / parse_bytes(budget), 4),
        "command": shown(budget, options),
        "commit": current_commit(),
    }


def shown(budget: str, options: argparse.Namespace) -> str:
    return f"nncsl train --preset cifar10 --memory-budget {budget} " + " ".join((*SETTINGS, *options.set))


def with_few_test_images(data_dir: Path, to: Path) -> None:
    """CIFAR-10 with all training images and the first 100 test images: evaluation would take most of the time."""
    source, target = data_dir.resolve() / "cifar-10-batches-bin", to / "cifar-10-batches-bin"
    target.mkdir(parents=True)
    for path in source.iterdir():
        if path.name == "test_batch.bin":
            (target / path.name).write_bytes(path.read_bytes()[: 100 * RECORD])
        else:
            (target / path.name).symlink_to(path)


def resident(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) * 1024
    except (OSError, IndexError):  # it has just ended
        return 0


def show(results: list[dict[str, Any]]) -> None:
    table = Table("budget", "chosen", "planned", "measured", "of the budget")
    for result in results:
        if "refused" in result:
            table.add_row(result["budget"], result["refused"])
            continue
        chosen = ", ".join(f"{name} {value}" for name, value in result["settings"].items())
        sizes = (f"{result[name] / 1e6:,.0f} MB" for name in ("planned", "measured"))
        table.add_row(result["budget"], chosen, *sizes, f"{result['of_budget']:.1%}")
    Console().print(table)


if __name__ == "__main__":
    raise SystemExit(main())
