"""Who else gets hurt? Links in a run's folder that lead to somebody's file, and two processes in one folder.

    python -m nncsl.benchmarks.sharing [--owners 15] [--out FILE]

Every name that a run writes to, or that earlier versions wrote to on the way, is made a link to another file in turn;
the run is resumed and reported, and the other file has to be as it was. Then two processes train in one folder, started
together or one after the other: one has to end well, the other to be told of it; the journal has every line once.

For an older version: check out these benchmarks into it, `git checkout main -- benchmarks`, and run the same command.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from nncsl import cli

from . import forked
from .damage import SMALL, prepare
from .provenance import current_commit

SETTINGS = [word for each in SMALL for word in ("--set", each)]
LINKS = (
    *("LOCK", "SHA256SUMS", "config.yaml", "tasks.json", "metrics.jsonl", "summary.json", "report.html"),
    *(".metrics.new.jsonl", ".summary.new.json", ".report.new.html", "checkpoint/state.pt", "checkpoint/.state.new.pt"),
    *("checkpoint/previous.pt", "memory/.20-images.new.npz", "snapshots/task-2.npz", "snapshots/.task-2.new.npz"),
    *(
        "snapshots/.views.new.json",
        "bank/LOCK",
        "bank/CURRENT",
        "bank/CURRENT.tmp",
        "bank/MANIFEST-000002-0001.json.tmp",
    ),
    *("bank/shards/000002-unlabeled-0000.h5.tmp", "bank/shards/000001-unlabeled-0001.h5.tmp"),
)


def followed(folder: Path, name: str) -> bool:
    """Return whether a run writes to what a link leads to. A file that was there is what the link leads to."""
    trial, victim = folder / "trial", folder / "victim"
    shutil.rmtree(trial, ignore_errors=True)
    shutil.copytree(folder / "stopped", trial)
    link = trial / name
    victim.write_bytes(link.read_bytes() if link.exists() else b"mine")
    link.unlink(missing_ok=True)
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(victim)
    before = victim.read_bytes()

    def work() -> int:
        if name.startswith("bank/shards/000002"):  # where a bank's next generation is written: one task back
            shutil.rmtree(trial)
            trial.mkdir()
            link.parent.mkdir(parents=True)
            link.symlink_to(victim)
            return cli.main(["train", "--quiet", "--no-report", "--out", str(trial), *SETTINGS])
        cli.main(["train", "--quiet", "--no-report", "--resume", str(trial)])
        return cli.main(["report", str(trial)])

    forked.done(work, folder / "trial.log")
    return victim.read_bytes() != before


def both(folder: Path, seconds: float) -> str | None:
    """Let two processes train in one folder, the second so much later; return what went wrong."""
    run = folder / "shared"
    shutil.rmtree(run, ignore_errors=True)
    logs = [folder / "first.log", folder / "second.log"]
    children = []
    for log in logs:
        log.unlink(missing_ok=True)
        saved = (run / "checkpoint" / "state.pt").exists()
        place = ["--resume", str(run)] if saved else ["--out", str(run), *SETTINGS]
        children.append(forked.start(partial(cli.main, ["train", "--quiet", "--no-report", *place]), log))
        time.sleep(seconds)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    said = "".join(log.read_text() for log in logs)
    if "Traceback" in said:
        return "a traceback"
    if sorted(codes) not in ([0, 0], [0, 2]):
        return f"exit codes {codes}"
    if codes == [0, 0] and "is complete" not in said:
        return "both trained"
    if 2 in codes and "process" not in said and "is not empty" not in said:
        return "the second was not told of the first"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    places = [(line["task"], line.get("epoch", 99)) for line in lines]
    return None if places == sorted(set(places)) and len(places) == 6 else "wrong lines in the journal"


def main(argv: list[str] | None = None) -> int:
    """Run the campaign."""
    parser = argparse.ArgumentParser(prog="python -m nncsl.benchmarks.sharing", description=__doc__.splitlines()[0])
    parser.add_argument("--owners", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/trust-sharing.json"))
    options = parser.parse_args(argv)
    forked.get_ready()
    dice = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="nncsl-sharing-") as name:
        folder = Path(name)
        began = time.monotonic()
        prepare(folder)
        whole = (time.monotonic() - began) / 3
        links = {link: followed(folder, link) for link in LINKS}
        owners = [both(folder, dice.uniform(0, whole) if n % 2 else 0.0) for n in range(options.owners)]
    record = {
        "command": " ".join(["python -m nncsl.benchmarks.sharing", *(sys.argv[1:] if argv is None else argv)]),
        "commit": current_commit(),
        "links": {"cases": len(links), "failures": sum(links.values()), "followed": [n for n in links if links[n]]},
        "two owners": {
            "cases": len(owners),
            "failures": sum(wrong is not None for wrong in owners),
            "what": sorted({wrong for wrong in owners if wrong}),
        },
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1))
    return 1 if any(links.values()) or any(owners) else 0


if __name__ == "__main__":
    sys.exit(main())
