"""Does every method keep within the smallest --memory-budget that the planner accepts for it?

``python -m nncsl.benchmarks.budget_tightest --data-dir DIR`` asks `nncsl train --preset cifar10-small` for one byte too
few, reads the smallest budget from the refusal, and trains with that: all tasks, one short epoch each, several times,
as resident memory differs from process to process. Writes benchmarks/results/budget-tightest.json; a method that is
recorded already is skipped.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from nncsl.config import parse_bytes
from nncsl.files import write_text
from nncsl.methods import METHODS

from .provenance import current_commit, processor

RESULTS = Path(__file__).parent / "results" / "budget-tightest.json"
SETTINGS = ("epochs=1", "unlabeled_fraction=0.05", "bank_support_views=2", "verify_data=false", "device=cpu")


def main(argv: list[str] | None = None) -> int:
    name = "python -m nncsl.benchmarks.budget_tightest"
    parser = argparse.ArgumentParser(prog=name, description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True, help="folder with cifar-10-batches-bin")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS), help="default: all")
    parser.add_argument("--times", type=int, default=3, help="runs of each (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="JSON file (default: %(default)s)")
    options = parser.parse_args(argv)
    results: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    for method in options.methods:
        if method not in results:
            results[method] = tightest(method, options.data_dir, options.times)
            write_text(options.out, json.dumps(results, indent=1) + "\n")
        print(method, *(f"{name} {value}" for name, value in results[method].items()), flush=True)
    return 0


def tightest(method: str, data_dir: Path, times: int) -> dict[str, Any]:
    """Return the smallest budget that is accepted, or why none is, and what share of it each run used."""
    facts = {"commit": current_commit(), "processor": processor()}
    refusal, _ = train(method, "1MB", data_dir)
    smallest = re.search(r"smallest that would work is (\w+)", refusal)
    if smallest is None:
        return {"refused": refusal, **facts}
    used: list[float] = []
    budget = smallest[1]
    while len(used) < times:
        refusal, memory = train(method, budget, data_dir)
        if memory is None:  # measured anew in every process, the smallest budget may differ by some MB
            budget = f"{parse_bytes(budget) // 10**6 + 10}MB"
            continue
        used.append(round(memory["budget_used"] / memory["budget"], 3))
    return {"budget": budget, "used": used, **facts}


def train(method: str, budget: str, data_dir: Path) -> tuple[str, dict[str, int] | None]:
    """Run the command; return its last line and, if it was not refused, the memory that it says it used."""
    with tempfile.TemporaryDirectory() as name:
        run = Path(name) / "run"
        command = [sys.executable, "-m", "nncsl", "train", "--preset", "cifar10-small", "--method", method]
        command += ["--memory-budget", budget, "--data-dir", str(data_dir), "--out", str(run), "--quiet", "--no-report"]
        for assignment in SETTINGS:
            command += ["--set", assignment]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return done.stderr.strip().splitlines()[-1], None
        return "", json.loads((run / "summary.json").read_text())["peak_memory"]


if __name__ == "__main__":
    raise SystemExit(main())
