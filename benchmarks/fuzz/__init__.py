"""Flags, settings and files that nobody should give, for every command: what ends otherwise than by a clear answer.

``python -m nncsl.benchmarks.fuzz`` runs every case of a seed in a forked child with 10 seconds and a memory limit, and
counts by kind and by command: ok; traceback (also a death by signal); hang; memory; exit code (a value that can't be
right was taken, or one that is right was not); output (control characters that reach the terminal raw, markup in a
report, formulas in a table); leftover (a refused run left a folder). It can be stopped and goes on where it was, with
the same ``--work``. ``--record NAME`` puts the counts into benchmarks/results/fuzz.json under that name.
"""

import argparse
import json
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from nncsl.files import write_text

from ..provenance import current_commit
from . import child
from .case import Case
from .cases import cases

RESULTS = Path(__file__).parents[1] / "results" / "fuzz.json"
KINDS = ("traceback", "hang", "memory", "exit code", "output", "leftover")
SLOW = ("train", "plan", "data show")
TEMPLATE = ("epochs=2", "warmup_epochs=1", "network.width=8", "network.blocks=[1]", "network.hidden=16", "bank_views=1")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m nncsl.benchmarks.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, help="only the first so many cases (default: all)")
    parser.add_argument(
        "--short",
        action="store_true",
        help="a quick choice of cases that do not train, of each command",
    )
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    parser.add_argument(
        "--part", default="1/1", metavar="K/N", help="only each N-th case: N processes may share --work"
    )
    parser.add_argument("--work", type=Path, help="where it works and remembers what is done (default: a new folder)")
    parser.add_argument("--record", metavar="NAME", help=f"put the counts into {RESULTS.name} under this name")
    options = parser.parse_args(argv)
    work = options.work or Path(tempfile.mkdtemp(prefix="nncsl-fuzz-"))
    work.mkdir(parents=True, exist_ok=True)
    numbered = list(enumerate(cases(options.seed)))[: options.count]
    chosen = [(number, case) for number, case in numbered if options.only in f"{case.command} {case.name}"]
    if options.short:
        chosen = few(chosen)
    part, parts = map(int, options.part.split("/"))
    chosen = chosen[part - 1 :: parts]
    print(f"{len(chosen)} cases, in {work}", flush=True)
    rows = campaign(chosen, options.seed, work)
    failures = [row for row in rows if row["kind"] != "ok"]
    for row in failures:
        print(f"{row['kind']}: {row['name']!a}: {row['detail']!a}")
    print(f"{len(failures)} of {len(rows)} cases failed: {dict(Counter(row['kind'] for row in failures))}")
    if options.record:
        record(options.record, rows, options.seed)
    if options.work is None:
        shutil.rmtree(work)
    return 1 if failures else 0


def few(chosen: list[tuple[int, Case]]) -> list[tuple[int, Case]]:
    """Return every 50th case of each command that does not train, and at least three of each that has them."""
    commands: dict[str, list[tuple[int, Case]]] = {}
    for number, case in chosen:
        if case.command not in SLOW:
            commands.setdefault(case.command, []).append((number, case))
    return [case for each in commands.values() for case in each[:: max(1, min(50, len(each) // 3))]]


def campaign(chosen: list[tuple[int, Case]], seed: int, work: Path) -> list[dict[str, Any]]:
    """Run the cases that were not run yet in this folder; return a row for each."""
    child.warm()
    template = run_template(work)
    journal = work / f"seed-{seed}.jsonl"
    done = {}
    if journal.exists():
        done = {row["number"]: row for row in map(json.loads, journal.read_text().splitlines())}
    spoken = time.monotonic()
    with journal.open("a") as file:
        for position, (number, case) in enumerate(chosen):
            if number in done:
                continue
            found = child.run(case, number, seed, template, work)
            row = {"number": number, "command": case.command, "name": case.name, **found._asdict()}
            done[number] = row
            file.write(json.dumps(row) + "\n")
            file.flush()
            if time.monotonic() - spoken > 20:
                spoken = time.monotonic()
                failed = sum(row["kind"] != "ok" for row in done.values())
                print(f"  {position + 1}/{len(chosen)} cases, {failed} failed", flush=True)
    return [done[number] for number, _ in chosen]


def run_template(work: Path) -> Path:
    """Train the small run whose files are damaged; one that is there already serves again."""
    folder = work / "template"
    if not (folder / "out" / "report.html").exists():
        shutil.rmtree(folder, ignore_errors=True)
        words = ["train", "--quiet", "--out", "out", "--tasks", "2"]
        words += [word for setting in TEMPLATE for word in ("--set", setting)]
        folder.mkdir()
        code, _, _ = child.forked(tuple(words), folder, folder, limit=300)
        if code:
            raise RuntimeError(f"the run to be damaged ended with {code}: {(folder / 'stderr').read_text()}")
    return folder / "out"


def record(name: str, rows: list[dict[str, Any]], seed: int) -> None:
    """Put the counts of a campaign into the results, beside those under other names."""
    recorded = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    commands = sorted({row["command"] for row in rows})
    recorded[name] = {
        "commit": current_commit(),
        "command": f"python -m nncsl.benchmarks.fuzz --seed {seed}",
        "seed": seed,
        "cases": len(rows),
        "failures": sum(row["kind"] != "ok" for row in rows),
        "kinds": {kind: sum(row["kind"] == kind for row in rows) for kind in KINDS},
        "commands": {each: _counts([row for row in rows if row["command"] == each]) for each in commands},
        "slowest_seconds": round(max(row["seconds"] for row in rows), 1),
    }
    write_text(RESULTS, json.dumps(recorded, indent=1) + "\n")


def _counts(rows: list[dict[str, Any]]) -> dict[str, int]:
    failed = Counter(row["kind"] for row in rows if row["kind"] != "ok")
    return {"cases": len(rows), **dict(sorted(failed.items()))}
