"""Does a run survive being killed? Signals at random moments, over every method and way of running it.

    python -m nncsl.benchmarks.kills [--kills 22] [--cases NAME ...] [--seed 0] [--out FILE]

Each case is trained once in one go. Then it is started, killed at a random moment (SIGKILL, every fourth time SIGTERM),
resumed, killed again, until it ends by itself; and all over again until it has had its kills. Whatever it ends with is
compared with what the first one ended with: weights, losses, accuracies, snapshots and remembered images, to the bit.
The processes are forked from one that has imported everything and computed nothing. Cases that are in the file already
are not run again. Exit code 1 if anything differed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from nncsl import cli, files, methods
from nncsl.featurebank import FeatureBank
from nncsl.record import checksums

from . import forked
from .provenance import current_commit, processor

SMALL = ("tasks=2", "epochs=2", "network.width=4", "network.hidden=8", "network.blocks=[1]", "bank_views=1",
         "unlabeled_batch=350", "ranks_timeout=60")  # fmt: skip
LONGEST = 120.0  # seconds that a process may take to end after a signal
NOTICED = 20.0  # seconds within which a rank notices that it has lost another


class Broken(AssertionError):
    """A run did not keep its promise."""


class Case(NamedTuple):
    """A way of running: its settings, and how many processes share it."""

    settings: tuple[str, ...]
    ranks: int = 1


def cases() -> dict[str, Case]:
    """Return every method, then teachers, codecs, ways to save memory, and ranks."""
    found = {}
    for method in methods.METHODS:
        own = ("own.epochs=4",) if hasattr(methods.find(method).Settings, "epochs") else ()
        found[method] = Case((f"method={method}", *own))
    for method in ("nncsl", "lwf", "icarl", "foster"):
        found[f"{method}, copied teacher"] = found[method]._replace(
            settings=(*found[method].settings, "teacher_mode=model")
        )
    others = {
        "fp32": "bank_codec=fp32",
        "int8": "bank_codec=int8",
        "pq": "bank_codec=pq",
        "bank on disk": "bank_residency=disk",
        "refreshed bank": "bank_refresh_epochs=1",
        "kd": "distillation=kd",
        "feature": "distillation=feature",
        "kd, copied teacher": "distillation=kd teacher_mode=model",
        "feature, copied teacher": "distillation=feature teacher_mode=model",
        "no teacher": "teacher_mode=none",
        "herding": "memory_selection=herding",
        "unlabeled memory": "unlabeled_memory=30",
        "labels by task": "labels=4/class,50%",
        "five tasks": "tasks=5 epochs=1",
        "bf16": "precision=bf16",
        "prefetch": "prefetch=on",
        "recompute": "recompute=true",
        "micro-batch": "micro_batch=40",
        "micro-batch, spilled to disk": "micro_batch=40 spill=disk",
        "micro-batch, recompute": "micro_batch=40 recompute=true",
        "micro-batch, copied teacher": "micro_batch=40 teacher_mode=model",
        "memory budget": "memory_budget=500MB unlabeled_batch=40 epochs=8",  # longer than its planning
        "many steps": "unlabeled_batch=100",
        "many steps, micro-batch": "unlabeled_batch=100 micro_batch=40",
        "many steps, er": "method=er unlabeled_batch=100",
    }
    found |= {name: Case(tuple(settings.split())) for name, settings in others.items()}
    ranks = {"": "", ", exact": "ranks_exact=true", ", copied teacher": "teacher_mode=model"}
    found |= {f"two ranks{name}": Case(tuple(settings.split()), ranks=2) for name, settings in ranks.items()}
    return found


class Processes:
    """A run's ranks, one process each, forked from this one."""

    def __init__(self, arguments: list[str], ranks: int, log: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(ranks)}
        place["LOCAL_WORLD_SIZE"] = str(ranks)
        self._ids = [
            forked.start(
                lambda: cli.main(arguments),
                log,
                place | {"RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks > 1 else {},
            )
            for rank in range(ranks)
        ]
        self.codes: list[int] = []

    def signal(self, number: int, dice: random.Random) -> None:
        """Send a signal: to all, as a launcher does; SIGKILL also to one alone."""
        chosen = self._ids if number == signal.SIGTERM or dice.random() < 0.5 else [dice.choice(self._ids)]
        for process in chosen:
            os.kill(process, number)

    def ended(self, seconds: float) -> bool:
        """Wait for all processes, at most so long; then ``codes`` has how they ended.

        One that still waits for a killed one after a while is asked to stop, as a launcher does: before ranks have met
        they don't know of each other.
        """
        began, asked = time.monotonic(), False
        while True:
            for process in list(self._ids):
                found, status = os.waitpid(process, os.WNOHANG)
                if found:
                    self.codes.append(os.waitstatus_to_exitcode(status))
                    self._ids.remove(process)
            waited = time.monotonic() - began
            if not self._ids or waited > seconds:
                return not self._ids
            if any(self.codes) and not asked and waited > NOTICED:
                asked = True
                self.signal(signal.SIGTERM, random.Random())
            time.sleep(0.002)


class Campaign:
    """The runs of one case, in a folder of their own."""

    def __init__(self, case: Case, folder: Path, dice: random.Random) -> None:
        self._case, self._folder, self._dice = case, folder, dice
        self.counts = {"SIGKILL": 0, "SIGTERM": 0, "before the first checkpoint": 0, "runs": 0}

    def play(self, kills: int) -> float:
        """Kill so often; Broken if a run ends otherwise than the whole one. Returns the whole one's seconds."""
        began = time.monotonic()
        whole = self._folder / "whole"
        if not self._processes(whole).ended(10 * LONGEST) or not (whole / "summary.json").exists():
            raise Broken(f"the whole run ended badly: {self._said(whole)}")
        seconds, expected = time.monotonic() - began, outcome(whole)
        while self.counts["SIGKILL"] + self.counts["SIGTERM"] < kills:
            self.counts["runs"] += 1
            broken = self._folder / f"broken-{self.counts['runs']}"
            while not (broken / "summary.json").exists():
                self._attempt(broken, seconds)
            found = outcome(broken)
            if found != expected:
                names = [name for name in expected if found.get(name) != expected[name]]
                raise Broken(f"{', '.join(names)} differ after {self.counts}: {self._said(broken)}")
            shutil.rmtree(broken)
        return seconds

    def _attempt(self, folder: Path, seconds: float) -> None:
        """Let a run go on, and kill it unless it ends before that."""
        number = signal.SIGTERM if self._dice.random() < 0.25 else signal.SIGKILL
        running = self._processes(folder)
        if running.ended(self._dice.uniform(0.01, seconds / 2)):  # what is left of a run takes ever less time
            if any(running.codes):
                raise Broken(f"ended by itself with {running.codes}: {self._said(folder)}")
            return
        saved = (folder / "checkpoint" / "state.pt").exists()
        running.signal(number, self._dice)
        if not running.ended(LONGEST):
            raise Broken(f"did not end after {number.name}: {self._said(folder)}")
        allowed = {0, 130} if number == signal.SIGTERM else {0, -signal.SIGKILL}
        if self._case.ranks > 1 and number == signal.SIGKILL:
            allowed |= {4, 130}  # who noticed that another was lost, or was asked to stop because of that
        if not set(running.codes) <= allowed:
            raise Broken(f"ended with {running.codes} after {number.name}: {self._said(folder)}")
        if any(running.codes):
            self.counts[number.name] += 1
            self.counts["before the first checkpoint"] += not saved

    def _processes(self, folder: Path) -> Processes:
        saved = (folder / "checkpoint" / "state.pt").exists()
        settings = [word for each in (*SMALL, *self._case.settings) for word in ("--set", each)]
        place = ["--resume", str(folder)] if saved else ["--out", str(folder), *settings]
        return Processes(["train", "--quiet", "--no-report", *place], self._case.ranks, self._log(folder))

    def _log(self, folder: Path) -> Path:
        return folder.with_suffix(".log")

    def _said(self, folder: Path) -> str:
        return self._log(folder).read_text()[-2000:]


def outcome(folder: Path) -> dict[str, str]:
    """Return a checksum of everything that a run has learned, measured and kept; Broken if its files are not whole."""
    for name in (line[66:] for line in (folder / checksums.NAME).read_text().splitlines() if line[0] != "#"):
        checksums.check(folder, name)
    left = [path.name for path in folder.rglob("*") if files.without_beside(path.name) != path.name]
    if left:
        raise Broken(f"{folder} has leftovers: {left}")
    if (folder / "bank").exists():
        with FeatureBank.open(folder / "bank") as bank:
            bank.verify()
    return forked.learned(folder)


def main(argv: list[str] | None = None) -> int:
    """Run the campaign."""
    parser = argparse.ArgumentParser(prog="python -m nncsl.benchmarks.kills", description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=22, help="of each case")
    parser.add_argument("--cases", nargs="+", choices=list(cases()), metavar="NAME", help="default: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/trust-kills.json"))
    options = parser.parse_args(argv)
    forked.get_ready()
    record: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {"cases": {}}
    command = " ".join(["python -m nncsl.benchmarks.kills", *(sys.argv[1:] if argv is None else argv)])
    record |= {"command": command, "commit": current_commit(), "processor": processor(), "seed": options.seed}
    for name, case in cases().items():
        if name in record["cases"] or (options.cases and name not in options.cases):
            continue
        began, dice = time.monotonic(), random.Random(f"{options.seed} {name}")
        with tempfile.TemporaryDirectory(prefix="nncsl-kills-") as folder:
            campaign = Campaign(case, Path(folder), dice)
            try:
                whole = campaign.play(options.kills)
                failure = None
            except Exception as error:
                whole, failure = 0.0, f"{type(error).__name__}: {error}"
        seconds = {"whole run": round(whole, 2), "case": round(time.monotonic() - began, 1)}
        record["cases"][name] = {**campaign.counts, "seconds": seconds, "failure": failure}
        done = record["cases"].values()
        record["total"] = {
            "cases": len(done),
            **{key: sum(each[key] for each in done) for key in campaign.counts},
            "failures": sum(each["failure"] is not None for each in done),
        }
        files.write_text(options.out, json.dumps(record, indent=1) + "\n")
        print(f"{len(done)}/{len(cases())} {name}: {failure or record['cases'][name]}", flush=True)
    print(json.dumps(record["total"]))
    return 1 if record["total"]["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
