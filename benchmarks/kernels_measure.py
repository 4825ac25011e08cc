"""Time and peak memory of one problem, for all providers in turn.

Providers take turns within every repetition, so that whatever else the machine does hits them alike. Each begins with a
forward of its own that is not measured: caches are then in the state it leaves, not in that of whoever came before.
Peak memory on CPU is the high-water mark of the process's resident set (reset through /proc before the call,
after freed memory was given back to the system) over its value before; on CUDA the allocator's own figure.
"""

import ctypes
import gc
import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from .kernels_providers import Problem

MODES = ("forward", "backward", "full")
Provider = Callable[[Problem], Tensor]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _once(provider: Provider, p: Problem) -> dict[str, float]:
    """Milliseconds: forward without gradients; forward + backward, and the backward's part of it."""
    device = p.queries.device
    with torch.no_grad():
        provider(p)
        _wait(device)
        start = time.perf_counter()
        provider(p)
        _wait(device)
        forward = time.perf_counter() - start
    p.queries.grad = p.supports.grad = None
    start = time.perf_counter()
    out = provider(p)
    _wait(device)
    middle = time.perf_counter()
    out.backward(p.upstream)
    _wait(device)
    stop = time.perf_counter()
    return {"forward": forward * 1e3, "backward": (stop - middle) * 1e3, "full": (stop - start) * 1e3}


def times(providers: dict[str, Provider], p: Problem, repeats: int) -> dict[tuple[str, str], list[float]]:
    """(provider, mode) -> milliseconds of each repetition, after an unmeasured one."""
    found: dict[tuple[str, str], list[float]] = {(name, mode): [] for name in providers for mode in MODES}
    for repetition in range(-1, repeats):
        for name, provider in providers.items():
            measured = _once(provider, p)
            if repetition >= 0:
                for mode, value in measured.items():
                    found[name, mode].append(value)
    return found


def quantiles(values: list[float]) -> tuple[float, float, float]:
    """20, 50 and 80 percent."""
    cuts = statistics.quantiles(values, n=10, method="inclusive")
    return cuts[1], cuts[4], cuts[7]


def _resident(field: str) -> float:
    status = Path("/proc/self/status").read_text()
    found = re.search(rf"{field}:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) / 1024


def peak_mib(provider: Provider, p: Problem, mode: str) -> float | None:
    """MiB above what was there before the call, results and gradients included; None where it can't be measured."""
    if mode == "backward":
        return None
    device = p.queries.device
    p.queries.grad = p.supports.grad = None
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device) / 2**20
    elif Path("/proc/self/clear_refs").exists():
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        before = _resident("VmRSS")
    else:
        return None
    with torch.set_grad_enabled(mode == "full"):
        out = provider(p)
        if mode == "full":
            out.backward(p.upstream)
    del out
    peak = torch.cuda.max_memory_allocated(device) / 2**20 if device.type == "cuda" else _resident("VmHWM")
    return max(0.0, peak - before)


def graph_times(provider: Provider, p: Problem, repeats: int) -> dict[str, list[float]] | None:
    """Milliseconds of CUDA graph replays, without the cost of launching; None if it can't be captured."""

    def forward() -> Tensor:
        with torch.no_grad():
            return provider(p)

    def full() -> tuple[Tensor, ...]:
        return torch.autograd.grad(provider(p), (p.queries, p.supports), p.upstream)

    found = {}
    for mode, work in (("forward", forward), ("full", full)):
        try:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    work()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                work()
        except RuntimeError:
            return None
        values = []
        for _ in range(repeats):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(10):
                graph.replay()
            torch.cuda.synchronize()
            values.append((time.perf_counter() - start) * 100)
        found[mode] = values
    return found


# Dense half-precision tensor-core peak in TFLOP/s, from the data sheets.
DATA_SHEET = {"A100": 312, "A10": 125, "L4": 121, "L40": 181, "RTX 3090": 71, "RTX 4090": 165, "H100": 989, "H200": 989,
              "B200": 2250, "MI300X": 1307}  # fmt: skip


def peak_flops(device: torch.device) -> float | None:
    """FLOP/s: the data sheet's on known GPUs, on CPU the best of some matrix products of the benchmark's shape."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        known = [value for key, value in DATA_SHEET.items() if re.search(rf"\b{key}\b", name)]
        return max(known) * 1e12 if known else None
    a, b, best = torch.randn(1024, 128), torch.randn(128, 4096), float("inf")
    for _ in range(30):
        start = time.perf_counter()
        torch.mm(a, b)
        best = min(best, time.perf_counter() - start)
    return 2 * 1024 * 128 * 4096 / best
