"""Whether a CPU's bf16 products could be used: how far off they are, how fast, and which ways to fp32 results exist.

``python -m nncsl.benchmarks.kernels_bf16`` multiplies unit vectors [1024, 128] and [4096, 128] that are bf16 already,
so that only the product itself is judged: against fp64, and in the processor's seconds, ways in turns.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from nncsl.files import write_text

from .provenance import current_commit, processor

RESULTS = Path(__file__).parent / "results" / "kernels-bf16.json"


def ways(q: Tensor, s: Tensor) -> dict[str, Callable[[], Tensor]]:
    """Return products of bf16 q [N, D] and s [K, D], by name: the one that is used, and those that might be."""
    one = torch.ones((), dtype=torch.float32)
    return {
        "cast up to fp32": lambda: q.float() @ s.float().t(),
        "mm": lambda: q @ s.t(),
        "mm, out_dtype": lambda: torch.mm(q, s.t(), out_dtype=torch.float32),
        "mm, out": lambda: torch.mm(q, s.t(), out=torch.empty(len(q), len(s))),
        "_scaled_mm": lambda: torch._scaled_mm(q, s.t(), one, one, out_dtype=torch.float32),
    }


def judged(repeats: int) -> dict[str, dict[str, float | str]]:
    """Return the largest error of a cosine, and the median of milliseconds; or why a way is refused."""
    rng = torch.Generator().manual_seed(0)
    q, s = (F.normalize(torch.randn(rows, 128, generator=rng)).bfloat16() for rows in (1024, 4096))
    exact = q.double() @ s.double().t()
    found: dict[str, dict[str, float | str]] = {}
    usable: dict[str, Callable[[], Tensor]] = {}
    for name, way in ways(q, s).items():
        try:
            found[name] = {"error": float(f"{(way().double() - exact).abs().max().item():.2g}")}
            usable[name] = way
        except (RuntimeError, TypeError, ValueError) as error:
            found[name] = {"refused": str(error).split(". ")[0].splitlines()[0]}
    seconds: dict[str, list[float]] = {name: [] for name in usable}
    for _ in range(repeats):
        for name, way in usable.items():
            began = time.process_time()
            way()
            seconds[name].append(time.process_time() - began)
    for name, each in seconds.items():
        found[name]["ms"] = round(1e3 * statistics.median(each), 2)
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m nncsl.benchmarks.kernels_bf16", description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=21, help="of each way (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="JSON file to write (default: %(default)s)")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    facts = {"commit": current_commit(), "processor": processor(), "torch": torch.__version__}
    report = {**facts, "products": judged(options.repeats)}
    write_text(options.out, json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
