"""Whether two versions of the project train the same networks: hashes of whole digits runs, of every method and mode.

``python -m nncsl.benchmarks.identity --checkout DIR --out FILE`` trains with the code in DIR (default: this one) and
writes a hash per run of its weights, losses and accuracies; ``--compare FILE`` then says which differ. One thread, so
that sums have one order; another processor or another torch has hashes of its own, so both versions have to run on
one machine.
"""

import argparse
import csv
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from nncsl.files import write_table

RESULTS = Path(__file__).parent / "results" / "identity.csv"
SHORT = ("epochs=2", "warmup_epochs=1", "network.width=8", "network.hidden=16", "bank_views=2")
# Settings that existed before and after the redesign of the method seam; spelled as they were then.
WHOLE = {name: (f"method={name}",) for name in ("csl", "csl-nofilter", "paws", "er", "finetune", "joint")}
WHOLE |= {f"nncsl {mode}": (f"teacher_mode={mode}",) for mode in ("features", "model", "none")}
SWITCHES = {
    "kd": ("distillation=kd",),
    "kd model": ("distillation=kd", "teacher_mode=model"),
    "feature": ("distillation=feature",),
    "feature model": ("distillation=feature", "teacher_mode=model"),
    "no memory": ("memory=0",),
    "herding": ("memory_selection=herding", "memory=10"),
    "herding er": ("memory_selection=herding", "memory=10", "method=er"),
    "unlabeled memory": ("unlabelled_memory=40",),
    "refreshed bank": ("bank_refresh_epochs=1",),
    "more support views": ("bank_support_views=8",),
    "int8 on disk": ("bank_codec=int8", "bank_residency=disk"),
    "training batchnorm": ("batchnorm=train",),
    "training batchnorm model": ("batchnorm=train", "teacher_mode=model"),
    "micro-batches": ("micro_batch=16",),
    "micro-batches paws": ("micro_batch=16", "method=paws", "batchnorm=train"),
    "recompute": ("recompute=true",),
    "lars": ("optimizer=lars", "lr_peak=0.4"),
    "class order": ("class_order=[9,8,7,6,5,4,3,2,1,0]", "unlabelled_fraction=0.5"),
}
CASES = WHOLE | {f"short {name}": (*SHORT, *settings) for name, settings in SWITCHES.items()}
CASES |= {f"short {name}": (*SHORT, *settings) for name, settings in WHOLE.items()}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m nncsl.benchmarks.identity", description=__doc__.splitlines()[0])
    parser.add_argument("--checkout", type=Path, default=Path(__file__).resolve().parents[1], help="whose code trains")
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    parser.add_argument("--out", type=Path, default=RESULTS, help="csv file to write (default: %(default)s)")
    parser.add_argument("--compare", type=Path, help="a csv file of another version: exit 1 where hashes differ")
    options = parser.parse_args(argv)
    rows = []
    for name, settings in CASES.items():
        if options.only in name:
            rows.append({"case": name, **hashes(options.checkout, settings), "settings": " ".join(settings)})
            print(" ".join(str(value) for value in rows[-1].values()), flush=True)
            write_table(options.out, rows, list(rows[0]))
    return compare(options.compare, rows) if options.compare else 0


def hashes(checkout: Path, settings: tuple[str, ...]) -> dict[str, str]:
    """Trains once; a short hash each of the final weights, of every epoch's losses, and of the accuracies."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        words = [sys.executable, "-m", "nncsl.cli", "train", "--quiet", "--no-report", "--out", str(run)]
        words += [word for setting in settings for word in ("--set", setting)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(words, cwd=checkout, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)}: {done.stderr}")
        saved = torch.load(run / "checkpoint" / "state.pt", weights_only=True)
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        summary = json.loads((run / "summary.json").read_text())
    return {
        "weights": digest(weights(saved)),
        "losses": digest([losses(line) for line in lines if line["kind"] == "epoch"]),
        "accuracies": digest([summary[key] for key in ("accuracy_matrix", "seen_accuracy", "fwt")]),
        "average_accuracy": f"{summary['average_accuracy']:.4f}",
    }


def weights(saved: dict[str, Any]) -> list[Any]:
    """The network's tensors, whatever the checkpoint of that version calls the place where they are."""
    state = saved.get("network") or saved["method"]
    named = {name.removeprefix("network."): value for name, value in state.items()}
    return [(name, named[name].contiguous().numpy().tobytes().hex()) for name in sorted(named)]


def losses(line: dict[str, Any]) -> dict[str, Any]:
    """An epoch's losses; rates and times are no part of what was learned."""
    return {name: line[name] for name in ("task", "epoch", "snn", "mem", "lin", "nnd") if name in line}


def digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]


def compare(path: Path, rows: list[dict[str, str]]) -> int:
    """Names the cases that differ from those in ``path``."""
    with path.open(newline="") as file:
        before = {row["case"]: row for row in csv.DictReader(file)}
    different = [
        f"{row['case']}: {key} {before[row['case']][key]} -> {row[key]}"
        for row in rows
        for key in ("weights", "losses", "accuracies")
        if row["case"] in before and before[row["case"]][key] != row[key]
    ]
    print("\n".join(different) or f"{len(rows)} runs, all identical")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
