"""Speed and memory of `kernels.snn` and `kernels.nnd_loss` against plain torch, torch.compile and SDPA.

python -m nncsl.benchmarks.kernels                measure on whatever device is there, write a csv, its json and plots
python -m nncsl.benchmarks.kernels --quick        the same at fewer sizes and repetitions
python -m nncsl.benchmarks.kernels --static       compile every Triton kernel for GPUs that need not be there
python -m nncsl.benchmarks.kernels --launches     count device operations and waits per call, without a device
python -m nncsl.benchmarks.kernels --plot FILE    only draw a csv again
"""

import argparse
import datetime
import json
import os
import platform
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from nncsl.files import write_table

from . import kernels_measure as measure
from . import kernels_static as static
from .kernels_plots import plot
from .kernels_providers import Problem, problem, providers
from .provenance import current_commit, processor

RESULTS = Path(__file__).parent / "results"
COLUMNS = ["kernel", "provider", "mode", "N", "K", "C", "D", "dtype", "device", "threads", "repeats",
           "ms_q20", "ms_q50", "ms_q80", "ms_min", "peak_mib", "percent_of_limit"]  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks.kernels", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer sizes and repetitions, without torch.compile")
    parser.add_argument("--static", action="store_true", help="compile the Triton kernels ahead of time instead")
    parser.add_argument("--targets", nargs="+", choices=static.TARGETS, help="of --static (default: all)")
    parser.add_argument("--launches", action="store_true", help="count device operations and waits instead")
    parser.add_argument("--plot", type=Path, metavar="CSV", help="only draw this csv")
    parser.add_argument("--kernels", nargs="+", default=["snn", "nnd"], choices=["snn", "nnd"])
    parser.add_argument("--providers", nargs="+", default=["eager", "compile", "sdpa", "kernels"])
    parser.add_argument("--supports", nargs="+", type=int, default=[20, 100, 600, 5120, 50000], metavar="K")
    parser.add_argument("--classes", nargs="+", type=int, default=[10, 100, 1000], metavar="C")
    parser.add_argument("--queries", type=int, default=1024, metavar="N")
    parser.add_argument("--dim", type=int, default=128, metavar="D")
    parser.add_argument("--dtype", default="float32", choices=["float32", "float16", "bfloat16"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", nargs="+", type=int, help="CPU threads, one run each (default: torch's)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="directory of the results")
    return parser


def _repeats(k: int, quick: bool) -> int:
    full = 5 if k > 20000 else 15 if k > 2000 else 101
    return max(3, full // 4) if quick else full


def _rows(p: Problem, args: argparse.Namespace, threads: int, limit: float | None) -> Iterator[dict[str, Any]]:
    """Measure one problem with every provider."""
    k = p.supports.shape[0]
    chosen = providers(p.kernel, args.providers)
    repeats = _repeats(k, args.quick)
    found = measure.times(chosen, p, repeats)
    flops = p.flops
    common = {"kernel": p.kernel, "N": p.queries.shape[0], "K": k, "C": p.num_classes, "D": p.queries.shape[1],
              "dtype": args.dtype, "device": args.device, "threads": threads, "repeats": repeats}  # fmt: skip
    if args.device == "cuda" and k <= 600:
        for name, provider in chosen.items():
            replayed = measure.graph_times(provider, p, repeats) or {}
            found.update({(name, f"{mode} (graph)"): values for mode, values in replayed.items()})
    for (name, mode), values in found.items():
        q20, q50, q80 = measure.quantiles(values)
        work = flops[mode.split(" ")[0]]
        peak = measure.peak_mib(chosen[name], p, mode) if mode in measure.MODES else None
        yield {
            **common, "provider": name, "mode": mode,
            "ms_q20": f"{q20:.4g}", "ms_q50": f"{q50:.4g}", "ms_q80": f"{q80:.4g}", "ms_min": f"{min(values):.4g}",
            "peak_mib": "" if peak is None else f"{peak:.1f}",
            "percent_of_limit": "" if limit is None else f"{100 * work / (q50 / 1e3) / limit:.1f}",
        }  # fmt: skip


def _summary(rows: list[dict[str, Any]]) -> str:
    """One line of an aligned table: medians of one problem, and how much faster and smaller ours is."""
    cells = []
    for mode in ("forward", "full"):
        by = {r["provider"]: r for r in rows if r["mode"] == mode}
        times = {name: float(r["ms_q50"]) for name, r in by.items()}
        text = " ".join(f"{name} {value:8.2f}" for name, value in times.items())
        if "kernels" in times and len(times) > 1:
            best = min(value for name, value in times.items() if name != "kernels")
            text += f"  {times.get('eager', best) / times['kernels']:5.2f}x eager {best / times['kernels']:5.2f}x best"
        cells.append(f"{mode}: {text}")
        if mode == "full" and by.get("kernels", {}).get("peak_mib"):
            cells.append("MiB " + " ".join(f"{name} {r['peak_mib']}" for name, r in by.items()))
    first = rows[0]
    head = f"{first['kernel']} K={first['K']:>5} C={first['C']:>4} threads={first['threads']}"
    return " | ".join([head, *cells])


def _facts(argv: list[str], limits: dict[int, float | None]) -> dict[str, Any]:
    """What one needs to know to read or repeat a result."""
    return {
        "command": re.sub(r" --out[ =]\S+", "", " ".join(["python -m nncsl.benchmarks.kernels", *argv])),
        "commit": current_commit(),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "processor": processor(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "limit_gflops_by_threads": {str(t): None if v is None else round(v / 1e9, 1) for t, v in limits.items()},
        "limit": "data sheet" if torch.cuda.is_available() else "best of 30 products [1024, 128] x [128, 4096]",
        "peak_mib": "allocator" if torch.cuda.is_available() else "high-water mark of the resident set over its start",
    }


def _measure(args: argparse.Namespace, argv: list[str]) -> int:
    if args.quick:
        args.supports = [k for k in args.supports if k in (20, 600, 5120, 50000)]
        args.classes = [c for c in args.classes if c <= 100]
        args.providers = [p for p in args.providers if p != "compile"]
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / f"kernels-{args.device}{'-quick' if args.quick else ''}.csv"
    rows: list[dict[str, Any]] = []
    limits = {}
    for threads in args.threads or [torch.get_num_threads()]:
        torch.set_num_threads(threads)
        limits[threads] = limit = measure.peak_flops(torch.device(args.device))
        for kernel in args.kernels:
            for k in args.supports:
                for classes in args.classes:
                    p = problem(kernel, args.queries, k, classes, args.dim, args.device, getattr(torch, args.dtype))
                    new = list(_rows(p, args, threads, limit))
                    print(_summary(new), flush=True)
                    rows += new
                    write_table(path, rows, COLUMNS)
                    path.with_suffix(".json").write_text(json.dumps(_facts(argv, limits), indent=2) + "\n")
    for figure in plot(path):
        print(f"wrote {figure}")
    print(f"wrote {path}")
    return 0


def _static(args: argparse.Namespace) -> int:
    targets = args.targets or (["sm_80", "sm_90"] if args.quick else list(static.TARGETS))
    rows = []
    print(f"{'target':8} {'kernel':28} type  dim warps regs stack spills shared tensor-core redundant bound")
    for row in static.table(targets, ["fp16", "fp32"], [64, 128, 512]):
        rows.append(row)
        numbers = f"{row.warps:5} {row.registers:4} {row.stack:5} {row.spills:6} {row.shared:6} {row.tensor_core:11}"
        text = (
            f"{row.target:8} {row.kernel:28} {row.dtype} {row.dim:4} {numbers} {row.redundancy:9} {row.bound or '':5}"
        )
        print(text, ", ".join(row.problems()), flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    static.write(rows, args.out / "kernels-static.csv")
    return 1 if any(row.problems() for row in rows) else 0


def _launches(args: argparse.Namespace) -> int:
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports triton
    from . import kernels_launches as launches

    rows = []
    print(f"{'shapes':22} {'call':33} provider   aten triton  all waits")
    for row in launches.table():
        rows.append(row)
        counts = f"{row['aten']:4} {row['triton']:6} {row['operations']:4} {row['waits']:5}"
        print(f"{row['shapes']:22} {row['call']:33} {row['provider']:10} {counts}", flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    launches.write(rows, args.out / "kernels-launches.csv")
    return 0


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    args = _parser().parse_args(argv)
    if args.plot is not None:
        print("\n".join(f"wrote {figure}" for figure in plot(args.plot)))
        return 0
    if args.launches:
        return _launches(args)
    return _static(args) if args.static else _measure(args, argv)


if __name__ == "__main__":
    sys.exit(main())
