"""The feature bank against what one would use without it.

    python -m nncsl.benchmarks.bank [--quick] [--out benchmarks/results]

Gather: 256 random rows of [50000, 128] into a float32 tensor, other rows every time, all ways taking turns (medians).
The bank looks keys up; its rivals are given row numbers. Also filling, opening and memory of a bank of 50,000 x 16 rows
(205 MB), search against matmul + topk, and what each codec does to the soft nearest-neighbor probabilities of real
projections. Times are of one thread and only the ratios mean something elsewhere. Writes bank.csv and bank.json.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import h5py
import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from nncsl.featurebank import FeatureBank
from nncsl.featurebank.codecs import make_codec
from nncsl.featurebank.shard import read_column, read_layout

from .bank_projections import digit_projections
from .provenance import current_commit, processor

DIM, SLOTS = 128, 4
CODECS = ("fp32", "fp16", "int8", "int4", "pq", "pq32")
Row = tuple[str, str, str, float, str]  # section, what, measure, value, target


def interleaved(ways: dict[str, Callable[[int], object]], rounds: int) -> dict[str, float]:
    """Median seconds of each way; in every round each of them runs once, on the same numbered task."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        for name, way in ways.items():
            began = time.perf_counter()
            way(number)
            times[name].append(time.perf_counter() - began)
    return {name: median(values) for name, values in times.items()}


def keys(rows: int, slots: int) -> tuple[Tensor, Tensor]:
    return torch.arange(rows // slots).repeat_interleave(slots), torch.arange(slots).repeat(rows // slots)


def filled(path: Path, features: Tensor, codec: str, slots: int) -> FeatureBank:
    ids, slot_numbers = keys(len(features), slots)
    bank = FeatureBank.create(path, codec=codec, overwrite=True)
    for block in torch.arange(len(features)).split(4096):
        bank.write(ids[block], slot_numbers[block], features[block])
    bank.commit()
    return bank


def by_hand(mapped: Any, scales: Any, numbers: list[Any]) -> Callable[[int], Tensor]:
    """What one would write around a memory map: take the rows, decode them to float32."""
    if scales is None:
        return lambda n: torch.from_numpy(mapped[numbers[n]]).float()
    scales = scales.astype(np.float32)[:, None]
    return lambda n: torch.from_numpy(mapped[numbers[n]]) * torch.from_numpy(scales[numbers[n]])


def gather(folder: Path, rows: int, rounds: int) -> list[Row]:
    features = normalize(torch.randn(rows, DIM), dim=1)
    half = features.half()
    ids, slots = keys(rows, SLOTS)
    picks = [torch.randint(rows, (256,)) for _ in range(rounds)]
    numbers = [pick.numpy() for pick in picks]
    asked = [(ids[pick], slots[pick]) for pick in picks]
    ways: dict[str, Callable[[int], object]] = {
        "RAM tensor fp32, index_select": lambda n: features.index_select(0, picks[n]),
        "RAM tensor fp16, index_select": lambda n: half.index_select(0, picks[n]).float(),
    }
    table: list[Row] = []
    for codec in ("fp32", "fp16", "int8"):
        with filled(folder / codec, features, codec, SLOTS) as bank:
            table.append(("bytes", f"bank {codec}", "bytes per feature with key", bank.nbytes / rows, ""))
        for residency in ("ram", "disk"):
            bank = FeatureBank.open(folder / codec, residency=residency)
            ways[f"bank {codec}, {residency}"] = lambda n, bank=bank: bank.read(*asked[n])  # type: ignore[misc]
        (shard,) = (folder / codec / "shards").iterdir()
        offset, shape, dtype = read_layout(shard)
        mapped, scales = np.memmap(shard, dtype, "r", offset, shape), read_column(shard, "scales")
        ways[f"np.memmap {codec}"] = by_hand(mapped, scales, numbers)
    file = h5py.File(next((folder / "fp16" / "shards").iterdir()), "r")

    def plain_h5py(n: int) -> Tensor:
        distinct, back = np.unique(numbers[n], return_inverse=True)  # h5py takes no unsorted or repeated rows
        return torch.from_numpy(file["features"][distinct][back]).float()

    ways["h5py fp16"] = plain_h5py
    seconds = interleaved(ways, rounds)
    for name, value in seconds.items():
        table += [("gather", name, "microseconds", 1e6 * value, ""), ("gather", name, "reads/s", 1 / value, "")]
        target = "<= 3" if name.startswith("bank") and name.endswith("ram") else ""
        table.append(("gather", name, "times a RAM tensor", value / seconds["RAM tensor fp32, index_select"], target))
        target = "<= 2" if name.startswith("bank") and name.endswith("disk") else ""
        rival = next(seconds[f"np.memmap {codec}"] for codec in ("fp32", "fp16", "int8") if codec in name)
        table.append(("gather", name, "times np.memmap of the same bytes", value / rival, target))
    return table


MEASURE = """
import sys, time, torch
from nncsl.featurebank import FeatureBank
def memory(name):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(name))
torch.zeros(10).half().float()
before, began = memory("VmRSS"), time.perf_counter()
bank = FeatureBank.open(sys.argv[1], residency=sys.argv[2])
opened = time.perf_counter()
for _ in range(200):
    bank.read(torch.randint(int(sys.argv[3]), (1084,)), torch.randint(16, (1084,)))
print(opened - began, (time.perf_counter() - opened) / 200, memory("VmHWM") - before, bank.nbytes)
"""


def large(folder: Path, images: int, repeats: int) -> list[Row]:
    """Fill, open, serve: images x 16 slots, fp16."""
    rows = images * 16
    features = normalize(torch.randn(images, DIM), dim=1).repeat(16, 1)
    raw = features.half().numpy().tobytes()

    def plain_write(number: int) -> None:
        with (folder / f"plain-{number}").open("wb") as file:
            file.write(raw)
            os.fsync(file.fileno())
        if number:
            (folder / f"plain-{number - 1}").unlink()  # as the bank removes its predecessor below

    def fill(number: int) -> None:
        filled(folder / "large", features, "fp16", 16).close()

    seconds = interleaved({"one write and fsync": plain_write, "bank": fill}, repeats)
    megabytes = len(raw) / 1e6
    table: list[Row] = [
        ("fill", "bank fp16, durable", "MB/s", megabytes / seconds["bank"], ">= 200"),
        ("fill", "one write and fsync of ready bytes", "MB/s", megabytes / seconds["one write and fsync"], ""),
    ]
    for residency in ("disk", "ram"):
        command = [sys.executable, "-c", MEASURE, str(folder / "large"), residency, str(images)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        opened, read, memory, size = map(float, done.stdout.split())
        name = f"{rows} rows, {residency}"
        table += [
            ("large", name, "seconds to open and verify", opened, ""),
            ("large", name, "microseconds per read of 1084 random rows", 1e6 * read, ""),
            ("large", name, "peak memory / size", memory / size, "< 1" if residency == "disk" else ""),
        ]
    return table


def search(folder: Path, rows: int, rounds: int) -> list[Row]:
    centers = normalize(torch.randn(500, DIM), dim=1)
    features = normalize(centers[torch.randint(500, (rows,))] + 0.7 * normalize(torch.randn(rows, DIM), dim=1), dim=1)
    queries = features[torch.randint(rows, (1024,))]
    with filled(folder / "search", features, "fp32", SLOTS) as bank:
        indexes = {kind: bank.index(kind) for kind in ("flat", "compressed")}
        rows_found = {}
        for kind, index in indexes.items():  # builds them as well
            found = index.search(queries, 20)
            rows_found[kind] = found.ids * SLOTS + found.slots
        ways: dict[str, Callable[[int], object]] = {
            "torch matmul + topk": lambda n: (queries @ features.T).topk(20),
            "bank.index flat": lambda n: indexes["flat"].search(queries, 20),
            "bank.index compressed": lambda n: indexes["compressed"].search(queries, 20),
        }
        seconds = interleaved(ways, rounds)
        began = time.perf_counter()
        bank.index().search(queries[:1], 1)
        build = time.perf_counter() - began
    table: list[Row] = [("search", name, "milliseconds", 1e3 * value, "") for name, value in seconds.items()]
    recall = (rows_found["compressed"][:, :, None] == rows_found["flat"][:, None]).any(2).float().mean().item()
    table.append(("search", "bank.index compressed", "recall of 20", recall, ""))
    table.append(("search", "bank.index flat", "milliseconds to build", 1e3 * build, ""))
    return table


def codec_errors(steps: int) -> list[Row]:
    """Soft nearest neighbors at temperature .1 over 500 supports, from stored features instead of exact ones."""
    features, labels = digit_projections(DIM, steps)
    classes = torch.nn.functional.one_hot(labels[:500], 10).float()

    def probabilities(stored: Tensor) -> Tensor:
        unit = normalize(stored, dim=1)
        return (unit[500:] @ unit[:500].T / 0.1).softmax(1) @ classes

    exact = probabilities(features)
    table: list[Row] = []
    for name in CODECS:
        codec = make_codec(name, DIM)
        if hasattr(codec, "train"):
            codec.train(features)
        values, scales = codec.encode(features)
        decoded = codec.decode(
            torch.from_numpy(values), None if scales is None else torch.from_numpy(scales).float().unsqueeze(1)
        )
        found = probabilities(decoded)
        table += [
            ("codec", name, "bytes per feature", codec.row_bytes, ""),
            ("codec", name, "same top class", (found.argmax(1) == exact.argmax(1)).float().mean().item(), ""),
            ("codec", name, "largest error of a probability", (found - exact).abs().max().item(), ""),
            ("codec", name, "largest error of an entry", (decoded - features).abs().max().item(), ""),
        ]
    right = (exact.argmax(1) == labels[500:]).float().mean().item()
    table.append(("codec", "exact features", "accuracy of the soft nearest neighbors", right, ""))
    return table


def reached(value: float, target: str) -> bool:
    sign, bound = target.split()
    return {"<=": value <= float(bound), "<": value < float(bound), ">=": value >= float(bound)}[sign]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m nncsl.benchmarks.bank", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args(argv)
    commit, load = current_commit(), round(os.getloadavg()[0], 1)  # now: both may change while this runs
    scale = 25 if options.quick else 1
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="bank-", dir=Path.cwd()) as name:
        folder = Path(name)
        table = gather(folder, 50_000 // scale, 2000 // scale)
        table += large(folder, 50_000 // scale, 5)
        table += search(folder, 50_000 // scale, 5)
    table += codec_errors(200)
    if options.quick:
        table = [(*row[:4], "") for row in table]  # the targets are for the full sizes
    missed = [row for row in table if row[4] and not reached(row[3], row[4])]
    for section, what, measure, value, target in table:
        verdict = f"  target {target}: {'reached' if reached(value, target) else 'MISSED'}" if target else ""
        print(f"{section:8} {what:36} {measure:42} {value:12.4g}{verdict}")
    about: dict[str, Any] = {
        "command": " ".join(["python -m nncsl.benchmarks.bank", *(sys.argv[1:] if argv is None else argv)]),
        "commit": commit,
        "seed": 0,
        "machine": f"{processor()}, {os.cpu_count()} cores, 1 thread used",
        "load average before": load,  # well above 1: others were at work, only ratios within a section count
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "h5py": h5py.__version__},
        "missed targets": [" ".join(map(str, row[:3])) for row in missed],
    }
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "bank.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("section", "what", "measure", "value", "target"), *table])
    (options.out / "bank.json").write_text(json.dumps(about, indent=1) + "\n")
    print(json.dumps(about, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
