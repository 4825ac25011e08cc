"""Does a bank survive what can happen to it? Kills, crashes at every single write, flipped bits, truncated files.

    python -m nncsl.benchmarks.bank_crash [--kills 300] [--flips 400] [--truncations 400] [--seed 0] [--out DIRECTORY]

A history of commits, new generations and evictions is played by a real process that is killed with SIGKILL at random
moments, and replayed from a recording of its file operations with the power failing after each of them. Whatever is
left must open, hold every acknowledged row bit by bit, and nothing that was never committed. Writes bank_crash.csv
(one line per accident) and bank_crash.json (the sums). Exit code 1 if anything at all went wrong.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from nncsl.featurebank import CorruptBank, FeatureBank

from .bank_history import Broken, play, start, steps_held, writer_finds_clean_directory
from .bank_power import Recorder, Volume
from .provenance import current_commit

Accident = dict[str, object]


# -- kill -9 -----------------------------------------------------------------------------------------------------------


def kill_once(path: Path, steps: int, wait: float) -> tuple[int, int]:
    """Let a real process play on from `steps`, kill it `wait` seconds later; (acknowledged, begun) as it reported."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # it never returns from here: it is killed
        os.close(reading)
        torch.set_num_threads(1)  # a pool of threads would not have survived the fork
        try:
            bank = FeatureBank.open(path, "a") if steps else None
            os.write(writing, b"r")
            for step in range(steps, 1_000_000):
                os.write(writing, b"b")
                if step == 0:
                    bank = start(path)
                else:
                    assert bank is not None
                    play(bank, step)
                os.write(writing, b"a")
        except BaseException as error:
            os.write(2, f"writer failed: {error!r}\n".encode())
        finally:
            os._exit(3)
    os.close(writing)
    reported = os.read(reading, 1)  # it is ready: only now the clock starts
    time.sleep(wait)
    os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    while select.select([reading], [], [], 0)[0] and (more := os.read(reading, 4096)):
        reported += more
    os.close(reading)
    if not os.WIFSIGNALED(status):
        raise Broken("the writing process ended by itself")
    return steps + reported.count(b"a"), steps + reported.count(b"b")


def kills(folder: Path, count: int, seed: int) -> Iterator[Accident]:
    """A new bank every 40 kills, so that creation is hit as well and steps stay quick."""
    dice = random.Random(seed)
    steps = 0
    for number in range(count):
        path = folder / f"killed-{number // 40}"
        if number % 40 == 0:
            steps = 0
        # Creating takes milliseconds: begin with short lives, and longer ones each time it did not get done.
        longest = 0.12 if steps else 0.004 * (1 + number % 40)
        acknowledged, begun = kill_once(path, steps, dice.uniform(0, longest))
        left = sum(1 for p in path.rglob("*.tmp"))
        steps = steps_held(path, acknowledged, begun)
        if steps:
            writer_finds_clean_directory(path)
        yield {
            "kind": "kill",
            "number": number,
            "where": f"step {begun}",
            "outcome": f"holds {steps}, {left} leftovers",
        }


# -- every write as a crash point --------------------------------------------------------------------------------------


def record_history(path: Path, steps: int) -> Recorder:
    """Play `steps` steps while recording every operation on the disk and every acknowledgment."""
    recorder = Recorder(path)

    class RecordedBank(FeatureBank):
        disk = recorder

    bank = start(path, RecordedBank)
    recorder.acknowledge()
    for step in range(1, steps):
        play(bank, step)
        recorder.acknowledge()
    bank.close()
    return recorder


def crash_points(folder: Path, seed: int, steps: int = 12, orders: int = 4) -> Iterator[Accident]:
    """Replay the history up to each operation, in several ways in which a disk may have executed it."""
    dice = random.Random(seed)
    recorder = record_history(folder / "recorded", steps)
    target = folder / "replayed"
    for point in range(len(recorder.operations) + 1):
        volume = Volume(recorder.operations[:point])
        following = recorder.operations[point] if point < len(recorder.operations) else None
        acknowledged = sum(at <= point for at in recorder.acknowledged)
        ways = {"killed": volume.as_seen(), "power lost": volume.after_power_loss(None)}
        if following is not None and following.name == "write":
            ways["torn write"] = Volume([*recorder.operations[:point], following.torn(dice.random())]).as_seen()
        for order in range(orders):
            ways[f"power lost, order {order}"] = volume.after_power_loss(dice)
        for way, files in ways.items():
            shutil.rmtree(target, ignore_errors=True)
            for name, data in files.items():
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                (target / name).write_bytes(data)
            held = steps_held(target, acknowledged, min(acknowledged + 1, steps))
            if held:
                writer_finds_clean_directory(target)
            else:
                start(target).close()
            before = f"before {following}" if following else "at the end"
            yield {"kind": "crash point", "number": point, "where": f"{way} {before}", "outcome": f"holds {held}"}


# -- damaged files -----------------------------------------------------------------------------------------------------


@contextmanager
def damaged(file: Path, content: bytes) -> Iterator[None]:
    original = file.read_bytes()
    file.write_bytes(content)
    try:
        yield
    finally:
        file.write_bytes(original)


def damages(folder: Path, flips: int, truncations: int, seed: int) -> Iterator[Accident]:
    """Flip one bit, or cut a file short, anywhere in a bank of two generations: opening it must say so."""
    dice = random.Random(seed)
    path = folder / "damaged"
    with start(path) as bank:
        for step in range(1, 12):
            play(bank, step)
        if len(bank.generations) < 2:
            raise Broken("expected two generations to damage")
    files = sorted(p for p in path.rglob("*") if p.is_file())
    with FeatureBank.open(path) as reader:
        for number in range(flips + truncations):
            file = dice.choice(files)
            content = bytearray(file.read_bytes())
            if number < flips:
                kind, at = "bit flip", dice.randrange(8 * len(content))
                content[at // 8] ^= 1 << at % 8
            else:
                kind, at = "truncation", dice.randrange(len(content))
                del content[at:]
            with damaged(file, bytes(content)):
                for check in (lambda: FeatureBank.open(path), lambda: FeatureBank.open(path, "a"), reader.verify):
                    message = _complaint(check)
                    if str(file) not in message or "restore" not in message:
                        raise Broken(f"{kind} at {at} of {file} was reported as: {message}")
            yield {"kind": kind, "number": number, "where": f"{file.relative_to(path)} at {at}", "outcome": "detected"}
        reader.verify()


def _complaint(check: object) -> str:
    try:
        check()  # type: ignore[operator]
    except CorruptBank as error:
        return str(error)
    return "nothing"


# -- the recorded campaign ---------------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m nncsl.benchmarks.bank_crash", description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--flips", type=int, default=400)
    parser.add_argument("--truncations", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args(argv)
    commit, began = current_commit(), time.perf_counter()
    accidents: list[Accident] = []
    failure = None
    with tempfile.TemporaryDirectory(prefix="bank-crash-", dir=Path.cwd()) as name:
        campaigns = (
            kills(Path(name), options.kills, options.seed),
            crash_points(Path(name), options.seed),
            damages(Path(name), options.flips, options.truncations, options.seed),
        )
        try:
            for campaign in campaigns:
                for accident in campaign:
                    accidents.append(accident)
                    if len(accidents) % 100 == 0:
                        print(f"{len(accidents)} accidents, last: {accident}", flush=True)
        except (Broken, OSError, RuntimeError) as error:
            failure = f"{type(error).__name__}: {error}"
    counts = Counter(str(accident["kind"]) for accident in accidents)
    summary = {
        "command": " ".join(["python -m nncsl.benchmarks.bank_crash", *(sys.argv[1:] if argv is None else argv)]),
        "commit": commit,
        "seed": options.seed,
        "seconds": round(time.perf_counter() - began, 1),
        "accidents": dict(counts),
        "checked after each": "bank readable, acknowledged rows there, no uncommitted row visible, damage detected",
        "first failure": failure,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "bank_crash.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, ["kind", "number", "where", "outcome"])
        table.writeheader()
        table.writerows(accidents)
    (options.out / "bank_crash.json").write_text(json.dumps(summary, indent=1) + "\n")
    print(json.dumps(summary, indent=1))
    return 1 if failure else 0


if __name__ == "__main__":
    sys.exit(main())
