"""One thread against two for a network as small as that of digits, on idle cores and beside a busy process.

``python -m nncsl.benchmarks.threads`` trains two tasks of digits in processes of their own, in turns, and prints images
per second and a fingerprint of the weights: sums depend on the number of threads, so the weights of one and two threads
differ in their last bits. Removed is nothing; few epochs make it quick.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch

_SETTINGS = ["--epochs", "3", "--tasks", "2", "--quiet", "--no-report"]


def trained(threads: int) -> tuple[float, str]:
    """Return images per second and the fingerprint of a run with so many threads."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        command = [sys.executable, "-m", "nncsl", "train", "--out", str(folder), *_SETTINGS]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
        rate = json.loads((folder / "summary.json").read_text())["images_per_second"]
        state = torch.load(folder / "checkpoint" / "state.pt", weights_only=False)["method"]
        digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in state.values()))
    return rate, digest.hexdigest()[:12]


@contextmanager
def busy_process() -> Iterator[None]:
    """Keep a process beside this one that only counts."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            yield
        finally:
            process.kill()


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line per run."""
    parser = argparse.ArgumentParser(prog="python -m nncsl.benchmarks.threads", description=__doc__)
    parser.add_argument("--rounds", type=int, default=2, help="how often each is measured (default: 2)")
    options = parser.parse_args(argv)
    print("beside,threads,images_per_second,weights")
    for beside, company in (("nothing", nullcontext), ("a busy process", busy_process)):
        with company():
            for _ in range(options.rounds):
                for threads in (1, 2):
                    rate, digest = trained(threads)
                    print(f"{beside},{threads},{rate:.0f},{digest}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
