"""Short runs of every method and teacher mode whose results are kept, so that a change that moves them is noticed.

``python -m tests.nncsl.methods.recorded`` writes them anew: after a change that is meant to move them, in its commit.
"""

import hashlib
import json
import sys
import tempfile
from pathlib import Path

import torch

from nncsl import config, methods, runs
from nncsl.benchmarks.provenance import processor
from nncsl.config import build

RECORD = Path(__file__).with_name("recorded.json")
SETTINGS = ("tasks=2", "epochs=2", "network.width=8", "network.hidden=16", "bank_views=2")
CASES = {name: (f"method={name}",) for name in methods.METHODS}
CASES |= {f"nncsl {mode}": (f"teacher_mode={mode}",) for mode in ("model", "none")}


def loaded(case):
    """The case's configuration."""
    return config.load("digits", map(build.parse_assignment, (*SETTINGS, *CASES[case])))


def results(folder):
    """What a finished run learned: a hash of all its weights, and the losses of every epoch."""
    saved = torch.load(folder / "checkpoint" / "state.pt", weights_only=True)["method"]
    weights = hashlib.sha256()
    for name in sorted(saved):
        weights.update(name.encode() + saved[name].contiguous().numpy().tobytes())
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    losses = [{name: line[name] for name in ("snn", "mem", "lin", "nnd") if name in line} for line in lines]
    return {"weights": weights.hexdigest()[:16], "losses": [found for found in losses if found]}


def machine():
    """What bits depend on: the order of sums is the processor's, the library's and the threads' affair."""
    return {"processor": processor(), "torch": torch.__version__, "threads": torch.get_num_threads()}


def main():
    torch.set_num_threads(1)
    found = {}
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            runs.start(methods.settled(loaded(case)), Path(folder) / "run", quiet=True)
            found[case] = results(Path(folder) / "run")
    RECORD.write_text(json.dumps({"machine": machine(), "runs": found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
