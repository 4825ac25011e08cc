"""``nncsl bench gpu``'s training part: the real command at a preset's sizes, in every mode, a few steps each."""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from .views import small_images

MODES: dict[str, tuple[str, ...]] = {
    "bank, bf16": ("precision=bf16",),
    "copied network, bf16": ("precision=bf16", "teacher_mode=model"),
    "no teacher, bf16": ("precision=bf16", "teacher_mode=none", "lambda_nnd=0"),
    "bank, fp32": (),
    "bank, fp16": ("precision=fp16",),
    "bank on the device, bf16": ("precision=bf16", "bank_residency=device"),
    "bank, bf16, without graphs": ("precision=bf16", "cuda_graph=off"),
    "bank, bf16, without preparation": ("precision=bf16", "prefetch=off"),
    "bank, bf16, micro-batches of 64": ("precision=bf16", "micro_batch=64"),
    "bank, bf16, blocks recomputed": ("precision=bf16", "recompute=true"),
}
COMMON = ("tasks=2", "labels=8/class", "bank_views=1", "verify_data=false", "epochs=2", "warmup_epochs=1")


def modes(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Train two short tasks in each mode; return images per second, peak memory and the share of the fastest."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = options.data_dir or folder / "data"
        if options.data_dir is None:
            made_up_cifar(data, 2000 if options.quick or options.device == "cpu" else 20000)
        for number, (mode, settings) in enumerate(MODES.items()):
            rows.append({"mode": mode, **train(options, settings, data, folder / str(number))})
    fastest = max((row["images per second"] for row in rows if row["images per second"]), default=1.0)
    return [row | {"of the fastest": (row["images per second"] or 0.0) / fastest} for row in rows]


def train(options: argparse.Namespace, settings: tuple[str, ...], data: Path, out: Path) -> dict[str, Any]:
    """Run the command; of one that fails, return its last line."""
    command = [sys.executable, "-m", "nncsl", "train", "--preset", options.preset, "--device", options.device]
    command += ["--out", str(out), "--quiet", "--no-report"]
    if options.preset.startswith("cifar"):
        command += ["--data-dir", str(data)]
    for assignment in (*COMMON, *settings):
        command += ["--set", assignment]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "no word").splitlines()[-1]
        return {"images per second": None, "peak MB": None, "note": said[:200]}
    summary = json.loads((out / "summary.json").read_text())
    peak = summary["peak_memory"]["total"] / 1e6
    return {"images per second": summary["images_per_second"], "peak MB": peak, "note": ""}


def made_up_cifar(folder: Path, count: int) -> None:
    """Write tiles of photos as CIFAR-10's binary files, with labels in turn."""
    target = folder / "cifar-10-batches-bin"
    target.mkdir(parents=True)
    images, _ = small_images(count, None)
    labels = (np.arange(count) % 10).astype(np.uint8)
    planes = images.transpose(0, 3, 1, 2).reshape(count, -1)
    records = np.concatenate([labels[:, None], planes], axis=1)
    for name, part in zip([*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"],
                          [*np.array_split(records, 5), records[:500]], strict=True):  # fmt: skip
        part.tofile(target / name)
    (target / "batches.meta.txt").write_text("\n".join(f"class{k}" for k in range(10)) + "\n")
