"""The CPU path against eager torch and against the kernels of another checkout, in turns, on one thread.

``python -m nncsl.benchmarks.kernels_before --checkout OTHER`` (a ``git worktree`` of an earlier commit) takes the
processor's seconds, so that other processes count as little as they can, and writes results/kernels-before.csv. Each
begins with a forward of its own that is not counted, and every other turn goes backwards: nobody always has the same
one before it.
"""

import argparse
import importlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nncsl.files import write_table

from .kernels_providers import TEMPERATURE, Problem, problem, providers
from .provenance import current_commit

RESULTS = Path(__file__).parent / "results" / "kernels-before.csv"
COLUMNS = ["commit", "before", "kernel", "K", "C", "mode", "repeats", "eager_ms", "before_ms", "now_ms"]
Provider = Callable[[Problem], Tensor]


def kernels_of(checkout: Path) -> Any:
    """Import the kernels of another checkout; ours are nncsl.kernels."""
    sys.path.insert(0, str(checkout))
    try:
        return importlib.import_module("kernels")
    finally:
        sys.path.remove(str(checkout))


def before(kernels: Any) -> Provider:
    """Return the other checkout's functions as a provider."""

    def call(p: Problem) -> Tensor:
        options: dict[str, Any] = {"num_classes": p.num_classes, "temperature": TEMPERATURE}
        if p.kernel == "snn":
            return kernels.snn(p.queries, p.supports, p.labels, **options)
        return kernels.nnd_loss(p.queries, p.supports, p.teacher_queries, p.teacher_supports, p.labels, **options)

    return call


def seconds(provider: Provider, p: Problem, mode: str) -> float:
    """Return what a forward pass, or that and a backward pass, takes of the processor."""
    with torch.no_grad():
        provider(p)
    p.queries.grad = p.supports.grad = None
    began = time.process_time()
    if mode == "forward":
        with torch.no_grad():
            provider(p)
    else:
        provider(p).backward(p.upstream)  # type: ignore[no-untyped-call]
    return time.process_time() - began


def compared(p: Problem, chosen: dict[str, Provider], mode: str, repeats: int) -> dict[str, float]:
    """Return medians of milliseconds, after a turn that is not counted."""
    found: dict[str, list[float]] = {name: [] for name in chosen}
    for turn in range(repeats + 1):
        for name in list(chosen)[:: -1 if turn % 2 else 1]:
            found[name].append(seconds(chosen[name], p, mode))
    return {name: 1e3 * statistics.median(each[1:]) for name, each in found.items()}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m nncsl.benchmarks.kernels_before", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--checkout", type=Path, required=True, help="folder of the other commit")
    parser.add_argument("--supports", type=int, nargs="+", default=[20, 100, 600, 5120, 50000], metavar="K")
    parser.add_argument("--classes", type=int, default=10, metavar="C")
    parser.add_argument("--out", type=Path, default=RESULTS, help="csv to write (default: %(default)s)")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    other = before(kernels_of(options.checkout.resolve()))
    head = ["git", "-C", str(options.checkout), "rev-parse", "HEAD"]
    commits = {
        "commit": current_commit(),
        "before": subprocess.run(head, capture_output=True, text=True, check=True).stdout.strip(),
    }
    rows: list[dict[str, Any]] = []
    for k in options.supports:
        repeats = 3 if k > 20000 else 9 if k > 2000 else 51
        for kernel in ("snn", "nnd"):
            p = problem(kernel, 1024, k, options.classes, 128, "cpu", torch.float32)
            ours = providers(kernel, ["eager", "kernels"])
            chosen = {"eager": ours["eager"], "before": other, "now": ours["kernels"]}
            for mode in ("forward", "full"):
                times = compared(p, chosen, mode, repeats)
                facts = {"kernel": kernel, "K": k, "C": options.classes, "mode": mode, "repeats": repeats}
                rows.append({**commits, **facts, **{f"{name}_ms": f"{ms:.4g}" for name, ms in times.items()}})
                now = times["now"]
                print(
                    f"{kernel} K={k} {mode}: {times['eager'] / now:.2f}x eager, {times['before'] / now:.2f}x before",
                    flush=True,
                )
                write_table(options.out, rows, COLUMNS)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
