"""Is damage to a run's files noticed? Flipped bits, zeroed sectors and cut-off ends, in every file of a run.

    python -m nncsl.benchmarks.damage [--each 8] [--seed 0] [--out FILE]

Three runs are trained: one to its end, two that were stopped in their last epoch (one of them with a bank that is
refreshed). A file of one of them is damaged, then read as people do: evaluated, shown, predicted with, resumed to its
end. Damage counts as noticed if a line names the file, as harmless if everything comes out as without it, and as a
failure if there is a traceback or another result. Exit code 1 if there is any failure.

For an older version: check out these benchmarks into it, `git checkout main -- benchmarks`, and run the same command.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from nncsl import cli

from . import forked
from .provenance import current_commit

SMALL = ("tasks=2", "epochs=2", "network.width=4", "network.hidden=8", "network.blocks=[1]", "bank_views=1",
         "unlabeled_batch=350", "memory=20")  # fmt: skip
SECTOR = 512


class Way(NamedTuple):
    """One way to read a run: which run, which files it reads, and what to do in a child of this process."""

    run: str
    reads: tuple[str, ...]
    work: Callable[[Path], int]


def evaluated(folder: Path) -> int:
    """Print what the checkpoint is worth."""
    return cli.main(["eval", str(folder)])


def shown(folder: Path) -> int:
    """Print everything that a report is made of."""
    from nncsl.errors import UserError
    from nncsl.record.snapshots import read_snapshot
    from nncsl.report.collect import collect

    try:
        record = collect(folder)
        print(record)
        for task in range(2):
            snapshot = read_snapshot(folder, task)
            assert snapshot is not None
            print(
                forked.digest(snapshot.projections.tobytes(), snapshot.labels.tobytes(), snapshot.confusion.tobytes())
            )
            print(snapshot.class_names)
    except UserError as error:
        print(f"nncsl: {error}", file=sys.stderr)
        return 2
    return cli.main(["metrics", str(folder)])


def predicted(folder: Path) -> int:
    """Print which remembered images decide about an image."""
    image = folder.parent / "image.png"
    return cli.main(["predict", str(folder), str(image), "--by", "neighbors"])


def resumed(folder: Path) -> int:
    """Train to the end."""
    code = cli.main(["train", "--resume", str(folder), "--quiet", "--no-report"])
    if code == 0:
        print("ended with", json.dumps(forked.learned(folder)))
    return code


def resumed_from_the_one_before(folder: Path) -> int:
    """Train to the end from the checkpoint before the last one."""
    code = cli.main(["train", "--resume", str(folder), "--quiet", "--no-report", "--previous"])
    if code == 0:
        print("ended with", json.dumps(forked.learned(folder)))
    return code


_SETTINGS = ("config.yaml", "tasks.json", "SHA256SUMS")
WAYS = (
    Way("ended", ("checkpoint/state.pt", "memory/*", *_SETTINGS), evaluated),
    Way("ended", ("metrics.jsonl", "summary.json", "command.txt", "snapshots/task-?.npz", *_SETTINGS), shown),
    Way("ended", ("memory/*", *_SETTINGS), predicted),
    Way("stopped", ("checkpoint/state.pt", "metrics.jsonl", "bank/*", "bank/shards/*", *_SETTINGS), resumed),
    Way("refreshed", ("checkpoint/teacher.pt",), resumed),
    Way("stopped", ("checkpoint/previous.pt",), resumed_from_the_one_before),
)


def prepare(folder: Path) -> None:
    """Train the runs: to the end, and up to the last epoch."""
    from PIL import Image

    Image.new("L", (8, 8), 99).save(folder / "image.png")
    for name, settings in (("ended", ()), ("stopped", ()), ("refreshed", ("bank_refresh_epochs=1",))):
        words = [word for each in (*SMALL, *settings) for word in ("--set", each)]
        arguments = ["train", "--quiet", "--no-report", "--out", str(folder / name), *words]
        code, said = forked.done(partial(_train, arguments, name != "ended"), folder / f"{name}.log")
        if code not in (0, 130):
            raise RuntimeError(f"{name}: {said}")


def _train(arguments: list[str], stop: bool) -> int:
    """Train; stop: as if Ctrl-C came in the first step of the last epoch."""
    import os
    import signal

    from nncsl.methods.nncsl import NNCSL

    losses = NNCSL.losses

    def stopping(self, step):  # type: ignore[no-untyped-def]
        if stop and (step.task.index, step.now.epoch) == (1, 1):
            os.kill(os.getpid(), signal.SIGTERM)
        return losses(self, step)

    NNCSL.losses = stopping  # type: ignore[method-assign]
    return cli.main(arguments)


def damages(content: bytes, each: int, dice: random.Random) -> Iterator[tuple[str, bytes]]:
    """Give kinds of damage and damaged contents, ``each`` of a kind."""
    for _ in range(each if content else 0):
        changed = bytearray(content)
        changed[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
        yield "bit flip", bytes(changed)
        start = dice.randrange(0, len(content), SECTOR)
        end = min(start + SECTOR, len(content))
        yield "zeroed sector", content[:start] + bytes(end - start) + content[end:]
        yield "cut off", content[: dice.randrange(len(content))]


def verdict(found: tuple[int, str], expected: tuple[int, str], path: Path) -> str:
    """Say how damage to a file was met."""
    code, said = found
    if "Traceback" in said:
        return "traceback"
    if code and (path.name in said or f"{path.parent.name} holds" in said):
        return "noticed"
    return "harmless" if (code, _comparable(said)) == (expected[0], _comparable(expected[1])) else "silently different"


def _comparable(said: str) -> str:
    """What was said, without a run's times; of a resumed run, what it ended with."""
    ended = [line for line in said.splitlines() if line.startswith("ended with")]
    return ended[0] if ended else said


def campaign(folder: Path, each: int, seed: int) -> Iterator[tuple[str, str, str, str]]:
    """Give (way, file, kind of damage, verdict) of every case."""
    dice = random.Random(seed)
    for way in WAYS:
        run, trial = folder / way.run, folder / "trial"
        files = sorted({path for pattern in way.reads for path in run.glob(pattern) if path.is_file()})
        expected = _read(way, run, trial, folder)
        for path in files:
            for kind, content in damages(path.read_bytes(), each, dice):
                found = _read(way, run, trial, folder, path.relative_to(run), content)
                name = path.relative_to(run).as_posix()
                yield way.work.__name__, name, kind, verdict(found, expected, path)


def _read(
    way: Way, run: Path, trial: Path, folder: Path, damaged: Path | None = None, content: bytes = b""
) -> tuple[int, str]:
    shutil.rmtree(trial, ignore_errors=True)
    shutil.copytree(run, trial)
    if damaged is not None:
        (trial / damaged).write_bytes(content)
    return forked.done(lambda: way.work(trial), folder / "trial.log")


def main(argv: list[str] | None = None) -> int:
    """Run the campaign."""
    parser = argparse.ArgumentParser(prog="python -m nncsl.benchmarks.damage", description=__doc__.splitlines()[0])
    parser.add_argument("--each", type=int, default=8, help="cases of each kind, file and way to read it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/trust-damage.json"))
    options = parser.parse_args(argv)
    forked.get_ready()
    began, counts = time.monotonic(), Counter[tuple[str, str, str, str]]()
    with tempfile.TemporaryDirectory(prefix="nncsl-damage-") as folder:
        prepare(Path(folder))
        for case in campaign(Path(folder), options.each, options.seed):
            counts[case] += 1
            if counts.total() % 50 == 0:
                print(f"{counts.total()} cases, {time.monotonic() - began:.0f} s, last: {case}", flush=True)
    total = Counter[str]()
    for (_, _, _, met), count in counts.items():
        total[met] += count
    record = {
        "command": " ".join(["python -m nncsl.benchmarks.damage", *(sys.argv[1:] if argv is None else argv)]),
        "commit": current_commit(),
        "seed": options.seed,
        "seconds": round(time.monotonic() - began, 1),
        "total": {"cases": counts.total(), **total},
        "cases": [
            {"read by": way, "file": name, "damage": kind, "met": met, "cases": count}
            for (way, name, kind, met), count in sorted(counts.items())
        ],
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record["total"]))
    return 1 if total["traceback"] or total["silently different"] else 0


if __name__ == "__main__":
    sys.exit(main())
