"""The parts of ``nncsl bench gpu`` that look at one thing each. Every one returns rows with the same columns."""

import argparse
import csv
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from nncsl import kernels
from nncsl.data.views import make_views

from . import kernels as kernel_benchmark
from .kernels_measure import peak_flops
from .views import POLICIES, large_images, small_images

Row = dict[str, Any]
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def limits(options: argparse.Namespace) -> list[Row]:
    """Measure square products in each precision, and copies within the device and to it."""
    device = torch.device(options.device)
    size = 256 if options.device == "cpu" else 1024 if options.quick else 8192
    rows = []
    for name, dtype in _DTYPES.items():
        a = torch.randn(size, size, device=device, dtype=dtype)
        rate = 2 * size**3 / seconds(lambda a=a: a @ a, device) / 1e12  # type: ignore[misc]
        sheet = peak_flops(device) if name != "fp32" and device.type == "cuda" else None
        share = "" if sheet is None else f"{100 * rate * 1e12 / sheet:.0f}% of the data sheet"
        rows.append({"what": f"product {size}, {name}", "rate": rate, "unit": "TFLOP/s", "note": share})
    source = torch.empty(2**26, dtype=torch.uint8, device=device)
    target, host = torch.empty_like(source), torch.empty(2**26, dtype=torch.uint8, pin_memory=device.type == "cuda")
    within = 2 * len(source) / seconds(lambda: target.copy_(source), device) / 1e9
    arriving = len(source) / seconds(lambda: target.copy_(host, non_blocking=True), device) / 1e9
    rows.append({"what": "copy within the device", "rate": within, "unit": "GB/s", "note": "read and written"})
    rows.append({"what": "copy from pinned memory", "rate": arriving, "unit": "GB/s", "note": ""})
    return rows


def parity(options: argparse.Namespace) -> list[Row]:
    """Compare every usable back end with fp64: worst error relative to the largest value, and plain torch's own."""
    shapes = [(64, 20, 10), (1000, 600, 100)]
    shapes += [] if options.quick else [(1, 1, 2), (777, 5120, 100)]
    rows = []
    for (n, k, classes), (name, dtype), kernel in product(shapes, _DTYPES.items(), ("snn", "nnd_loss")):
        given = [each.to(options.device) for each in _inputs(n, k, classes, dtype)]
        exact = [each.cpu().double() if each.is_floating_point() else each.cpu() for each in given]
        wanted = _gradients(kernel, exact, classes, "reference")
        plain = _worst(_gradients(kernel, given, classes, "reference"), wanted)
        for backend in (each for each in kernels.backends() if each != "reference"):
            try:
                error: float | str = _worst(_gradients(kernel, given, classes, backend), wanted)
            except (ValueError, RuntimeError) as refusal:  # a back end may not take a device or a type
                error = str(refusal).splitlines()[0][:120]
            row = {"kernel": kernel, "N": n, "K": k, "C": classes, "dtype": name, "backend": backend}
            rows.append(row | {"error": error, "plain torch": plain})
    return rows


def kernel_times(options: argparse.Namespace) -> list[Row]:
    """Run the kernels' own benchmark in fp32 and bf16; return its rows."""
    rows: list[Row] = []
    for dtype in ("float32", "bfloat16"):
        with tempfile.TemporaryDirectory() as folder, Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
            arguments = ["--device", options.device, "--dtype", dtype, "--out", folder]
            if options.quick:
                arguments += ["--quick", "--supports", "20", "600", "--classes", "10"]
            kernel_benchmark.main(arguments)
            (path,) = Path(folder).glob("*.csv")
            with path.open() as file:
                rows += list(csv.DictReader(file))
    left_out = ("D", "device", "threads", "repeats", "ms_min")
    return [{name: value for name, value in row.items() if name not in left_out} for row in rows]


def view_rates(options: argparse.Namespace) -> list[Row]:
    """Render two views of every image of a batch, again and again."""
    device, rows = torch.device(options.device), []
    few = options.quick or device.type == "cpu"
    sources = {
        "cifar": small_images(64 if few else 256, options.data_dir)[0],
        "imagenet": large_images(4 if few else 64),
    }
    for name, images in sources.items():
        twice, ids = np.concatenate([images, images]), np.tile(np.arange(len(images)), 2)
        slots = np.repeat([0, 1], len(images))
        for kind in ("large", "small"):
            policy = POLICIES[name]
            render = partial(make_views, twice, ids, slots, policy=policy, kind=kind, seed=0, task=0, device=device)
            rate = len(twice) / seconds(render, device)
            rows.append({"images": name, "views": kind, "batch": len(twice), "per second": rate})
    return rows


def seconds(work: Callable[[], Any], device: torch.device, repeats: int = 20) -> float:
    """Return the median time of a call, after three that warm up."""
    times = []
    for repetition in range(-3, repeats):
        _wait(device)
        began = time.perf_counter()
        work()
        _wait(device)
        if repetition >= 0:
            times.append(time.perf_counter() - began)
    return float(np.median(times))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _inputs(n: int, k: int, classes: int, dtype: torch.dtype) -> list[Tensor]:
    """Make queries, supports, a teacher's that are close to them, and labels."""
    rng = torch.Generator().manual_seed(0)
    rows = [torch.randn(count, 128, generator=rng) for count in (n, k)]
    near = [row + 0.1 * torch.randn(row.shape, generator=rng) for row in rows]
    return [*(row.to(dtype) for row in (*rows, *near)), torch.randint(0, classes, (k,), generator=rng)]


def _gradients(kernel: str, given: list[Tensor], classes: int, backend: str) -> list[Tensor]:
    """Return a loss and its gradients; that of snn is a cross-entropy, whose gradient is the hardest to keep."""
    queries, supports = (each.detach().clone().requires_grad_() for each in given[:2])
    if kernel == "snn":
        found = kernels.snn(queries, supports, given[4], num_classes=classes, backend=backend)
        wanted = torch.arange(len(queries), device=queries.device) % classes
        loss = F.nll_loss((found + 1e-8).log(), wanted)
    else:
        loss = kernels.nnd_loss(queries, supports, *given[2:], num_classes=classes, backend=backend)
    return [loss.detach(), *torch.autograd.grad(loss, (queries, supports))]


def _worst(found: list[Tensor], wanted: list[Tensor]) -> float:
    pairs = zip(found, wanted, strict=True)
    return max(float((f.double().cpu() - w).abs().max() / w.abs().max().clamp(min=1e-30)) for f, w in pairs)
