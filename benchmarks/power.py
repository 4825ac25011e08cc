"""Does a run survive a power cut? Everything that it does to the disk is recorded, and cut off after every operation.

    python -m nncsl.benchmarks.power [--orders 3] [--resumed 20] [--seed 0] [--out FILE]

A small run is trained while its file operations are recorded: those of the run, of its bank, and what makes folders.
Then the power fails after each of them: nothing that was not synced has arrived; or any part of it has, in any order
(``--orders`` times). A checkpoint that had been acknowledged must be there, or a later one, with everything that it
refers to. Some of what is left (``--resumed``) is trained to the end and compared with the whole run, to the bit.
Exit code 1 if a checkpoint was lost.

For an older version: check out these benchmarks into it, `git checkout main -- benchmarks`, and run the same command.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import pickle
import random
import shutil
import stat
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import torch

from nncsl import cli
from nncsl.errors import UserError
from nncsl.featurebank import BankError, FeatureBank

from . import forked
from .bank_power import Operation, Volume
from .damage import SMALL
from .provenance import current_commit

RUN = "runs/run"  # two folders that do not exist when the run begins
Position = tuple[int, int, int, int]


class Recorded(NamedTuple):
    """operations: all of them, in order; acknowledged: how many were done when a checkpoint was, and which."""

    operations: list[Operation]
    acknowledged: list[tuple[int, Position]]


class Recorder:
    """Takes notes of what this process does to files below a folder, through Python's own audit events."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.recorded = Recorded([], [])
        self._known: dict[int, bytes] = {}  # by inode, what was synced: of a file that grows, the rest is written
        self._sync = os.fsync

    def begin(self) -> None:
        """Listen from here on: this can't be undone, so it is for a process of its own."""
        from nncsl.record import checkpoint

        sys.addaudithook(self._hear)
        os.fsync = self._fsync  # type: ignore[assignment]
        save = checkpoint.save

        def acknowledged(path: Path, state: Any) -> None:
            save(path, state)
            if path.name == "state.pt":
                self.recorded.acknowledged.append((len(self.recorded.operations), position(state)))

        checkpoint.save = acknowledged

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str | os.PathLike) and arguments[2] & os.O_CREAT:
            name = self._name(arguments[0])
            if name and not os.path.lexists(arguments[0]):
                self._note("create", name)
        elif event in ("os.rename", "os.link"):
            source, target = self._name(arguments[0]), self._name(arguments[1])
            if source and target:
                self._note("replace" if event == "os.rename" else "link", source, target=target)
        elif event == "os.remove" and (name := self._name(arguments[0])) and os.path.lexists(arguments[0]):
            self._note("remove", name)
        elif event == "os.mkdir" and (name := self._name(arguments[0])) and not os.path.lexists(arguments[0]):
            self._note("make_directory", name)

    def _fsync(self, descriptor: Any) -> None:
        number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        path = Path(f"/proc/self/fd/{number}").readlink()
        if (name := self._name(path)) is not None:
            if stat.S_ISDIR(os.fstat(number).st_mode):
                self._note("sync_directory", name)
            else:
                content = os.pread(number, os.fstat(number).st_size, 0) if _readable(number) else path.read_bytes()
                known = self._known.get(os.fstat(number).st_ino, b"")
                start = len(known) if content.startswith(known) else 0
                self._note("write", name, data=content[start:], offset=start)
                self._note("truncate", name, offset=len(content))
                self._note("sync", name)
                self._known[os.fstat(number).st_ino] = content
        self._sync(descriptor)

    def _name(self, path: Any) -> str | None:
        absolute = Path(os.fsdecode(path)).absolute()
        return absolute.relative_to(self._root).as_posix() if absolute.is_relative_to(self._root) else None

    def _note(self, kind: str, name: str, **details: Any) -> None:
        self.recorded.operations.append(Operation(kind, name, **details))


def _readable(descriptor: int) -> bool:
    import fcntl

    return fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE != os.O_WRONLY


def position(state: Any) -> Position:
    """Return how far a checkpoint has come."""
    place = state["state"]
    return place["task"], place["phase"], place["epoch"], place["step"]


def record(folder: Path) -> Recorded:
    """Train a small run in a child and return what it did to the disk."""
    root, notes = folder / "disk", folder / "notes"
    root.mkdir()

    def work() -> int:
        recorder = Recorder(root)
        recorder.begin()
        settings = [word for each in SMALL for word in ("--set", each)]
        code = cli.main(["train", "--quiet", "--no-report", "--out", str(root / RUN), *settings])
        notes.write_bytes(pickle.dumps(recorder.recorded))
        return code

    code, said = forked.done(work, folder / "recorded.log")
    if code:
        raise RuntimeError(said)
    return pickle.loads(notes.read_bytes())


def lost(run: Path, required: Position | None) -> str | None:
    """Return what is wrong with what a power cut has left of a run; None if nothing is."""
    path = run / "checkpoint" / "state.pt"
    if not path.exists():
        return None if required is None else "the checkpoint is gone"
    try:
        saved = torch.load(io.BytesIO(path.read_bytes()), weights_only=True)
    except Exception as error:
        return f"the checkpoint can't be read ({type(error).__name__})"
    if required is not None and position(saved) < required:
        return "an older checkpoint"
    for name in ("config.yaml", "tasks.json", "metrics.jsonl"):
        if not (run / name).exists():
            return f"{name} is gone"
    try:
        _check(run)
        if saved["state"]["generation"] is not None:
            FeatureBank.open(run / "bank", generation=saved["state"]["generation"]).close()
    except (UserError, BankError, OSError) as error:
        return (
            f"what the checkpoint refers to is not there ({type(error).__name__}: {Path(str(error).split()[0]).name})"
        )
    return None


def _check(run: Path) -> None:
    """Compare with the run's checksums, in a version that has them."""
    try:
        from nncsl.record import checksums
    except ImportError:
        return
    for name in ("checkpoint/state.pt", "config.yaml", "tasks.json"):
        checksums.check(run, name)
    checksums.read_journal(run)


def main(argv: list[str] | None = None) -> int:
    """Run the campaign."""
    parser = argparse.ArgumentParser(prog="python -m nncsl.benchmarks.power", description=__doc__.splitlines()[0])
    parser.add_argument("--orders", type=int, default=3)
    parser.add_argument("--resumed", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/trust-power.json"))
    options = parser.parse_args(argv)
    forked.get_ready()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="nncsl-power-") as folder:
        found = campaign(Path(folder), options.orders, options.resumed, options.seed)
    total = {
        "cases": sum(found.values()),
        "failures": sum(found.values()) - found["intact"] - found["resumed, the same"],
    }
    result = {
        "command": " ".join(["python -m nncsl.benchmarks.power", *(sys.argv[1:] if argv is None else argv)]),
        "commit": current_commit(),
        "seed": options.seed,
        "seconds": round(time.monotonic() - began, 1),
        "total": total,
        "outcomes": dict(found.most_common()),
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    return 1 if total["failures"] else 0


def campaign(folder: Path, orders: int, resumed: int, seed: int, every: int = 1) -> Counter[str]:
    """Cut the power after each operation (or every so many); return how often each outcome was found."""
    dice, outcomes = random.Random(seed), Counter[str]()
    recorded = record(folder)
    expected = forked.learned(folder / "disk" / RUN)
    count = len(recorded.operations)
    points = range(0, count + 1, every)
    trained = set(dice.sample(points, min(resumed, len(points))))
    for point in points:
        volume = Volume(recorded.operations[:point])
        required = max((where for at, where in recorded.acknowledged if at <= point), default=None)
        for order in range(orders + 1):
            disk = folder / "left"
            shutil.rmtree(disk, ignore_errors=True)
            for name, data in volume.after_power_loss(dice if order else None).items():
                (disk / name).parent.mkdir(parents=True, exist_ok=True)
                (disk / name).write_bytes(data)
            outcomes[lost(disk / RUN, required) or "intact"] += 1
        if point in trained:
            outcomes[_trained(disk / RUN, folder, expected)] += 1
    return outcomes


def _trained(run: Path, folder: Path, expected: dict[str, str]) -> str:
    """Train what is left of a run to its end, or anew where nothing was saved; say how that went."""
    settings = [word for each in SMALL for word in ("--set", each)]
    saved = (run / "checkpoint" / "state.pt").exists()
    place = ["--resume", str(run)] if saved else ["--out", str(run), *settings]
    code, said = forked.done(lambda: cli.main(["train", "--quiet", "--no-report", *place]), folder / "trained.log")
    if code:
        return f"resumed, exit code {code}: {said[-300:]}"
    return "resumed, the same" if forked.learned(run) == expected else "resumed, different"


if __name__ == "__main__":
    sys.exit(main())
