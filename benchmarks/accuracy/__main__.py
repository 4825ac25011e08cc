"""Accuracy campaigns: lists of runs and seeds, one command each, resumable, recorded.

    python -m benchmarks.accuracy list
    python -m benchmarks.accuracy run digits [--jobs 2] [--data-dir DIR]
    python -m benchmarks.accuracy table digits

A campaign is a yaml file in benchmarks/accuracy/campaigns. Finished runs are skipped, interrupted ones go on, and runs
whose settings have changed since are made again. Each result is the run's summary.json with its resolved settings, the
commit, the command and the machine beside it.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from nncsl import config, typed

HERE = Path(__file__).parent
CAMPAIGNS = HERE / "campaigns"
RESULTS = HERE.parent / "results" / "accuracy"


@dataclass(frozen=True)
class Entry:
    """One run of a campaign."""

    campaign: str
    name: str
    seed: int
    preset: str
    settings: tuple[str, ...]

    @property
    def arguments(self) -> list[str]:
        return [
            "--preset",
            self.preset,
            "--seed",
            str(self.seed),
            *(part for s in self.settings for part in ("--set", s)),
        ]

    @property
    def config(self) -> dict[str, Any]:
        """The resolved settings, without where data lies and what computes."""
        overrides = [{"seed": self.seed}, *map(typed.parse_assignment, self.settings)]
        return _comparable(typed.plain(config.load(self.preset, overrides)))

    @property
    def result(self) -> Path:
        return RESULTS / self.campaign / f"{self.name}-seed{self.seed}.json"

    @property
    def folder(self) -> Path:
        return Path("runs") / "campaigns" / self.campaign / f"{self.name}-seed{self.seed}"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=("list", "run", "table"))
    parser.add_argument("campaign", nargs="?", help="a name that `list` shows")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time; the cores are shared among them")
    parser.add_argument("--data-dir", help="where the campaign's data set lies")
    options = parser.parse_args(argv)
    names = sorted(path.stem for path in CAMPAIGNS.glob("*.yaml"))
    if options.action == "list":
        print("\n".join(names))
        return 0
    if options.campaign not in names:
        parser.error(f"campaign: expected one of {', '.join(names)}, got {options.campaign}")
    entries = read(options.campaign)
    if options.action == "run":
        threads = max(1, (os.cpu_count() or 1) // options.jobs)
        with ThreadPoolExecutor(options.jobs) as pool:
            for line in pool.map(lambda entry: run(entry, threads, options.data_dir), entries):
                print(line, flush=True)
    show(options.campaign, entries)
    return int(options.action == "run" and not all(is_recorded(entry) for entry in entries))


def read(campaign: str) -> list[Entry]:
    """The campaign's runs, all runs of the first seed before those of the second."""
    content = yaml.safe_load((CAMPAIGNS / f"{campaign}.yaml").read_text())
    entries = []
    for seed in content["seeds"]:
        for name, settings in content["runs"].items():
            merged = {**content.get("settings", {}), **(settings or {})}
            assignments = tuple(f"{key}={value}" for key, value in merged.items())
            entries.append(Entry(campaign, name, seed, content["preset"], assignments))
    return entries


def run(entry: Entry, threads: int, data_dir: str | None) -> str:
    """Runs or resumes an entry in a process of its own; records its summary."""
    if is_recorded(entry):
        return f"{entry.name} seed {entry.seed}: recorded"
    arguments = [*entry.arguments, *(("--data-dir", data_dir) if data_dir else ())]
    started = (entry.folder / "checkpoint" / "state.pt").exists()
    if started and _comparable(yaml.safe_load((entry.folder / "config.yaml").read_text())) != entry.config:
        shutil.rmtree(entry.folder)  # begun with other settings
        started = False
    commit = _git("rev-parse", "HEAD") + ("+changes" if _git("status", "--porcelain", "-uno") else "")
    where = ["--resume", str(entry.folder)] if started else ["--out", str(entry.folder), *arguments]
    command = [sys.executable, "-m", "nncsl.cli", "train", "--quiet", "--no-report", *where]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    if ended.returncode:
        reason = (ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"])[-1]
        return f"{entry.name} seed {entry.seed}: failed ({reason})"
    record = {
        "summary": json.loads((entry.folder / "summary.json").read_text()),
        "command": "nncsl train " + " ".join(entry.arguments),
        "config": entry.config,
        "commit": commit,
        "machine": {"processor": platform.machine(), "cores": os.cpu_count(), "threads": threads},
    }
    entry.result.parent.mkdir(parents=True, exist_ok=True)
    beside = entry.result.with_suffix(".new")
    beside.write_text(json.dumps(record, indent=1) + "\n")
    beside.replace(entry.result)
    return f"{entry.name} seed {entry.seed}: {record['summary']['average_accuracy']:.1f}%"


def is_recorded(entry: Entry) -> bool:
    """Whether there is a result, made with the settings as they are now."""
    return entry.result.exists() and json.loads(entry.result.read_text())["config"] == entry.config


def _comparable(settings: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key not in ("data_dir", "cache_dir", "device")}


def show(campaign: str, entries: list[Entry]) -> None:
    """Mean and standard deviation over the recorded seeds of each run."""
    table = Table("run", "seeds", "average accuracy", "incremental", "forgetting", title=campaign, title_justify="left")
    for name in dict.fromkeys(entry.name for entry in entries):
        recorded = [entry for entry in entries if entry.name == name and is_recorded(entry)]
        summaries = [json.loads(entry.result.read_text())["summary"] for entry in recorded]
        if summaries:
            keys = ("average_accuracy", "average_incremental_accuracy", "forgetting")
            table.add_row(name, str(len(summaries)), *(_spread([s[key] for s in summaries]) for key in keys))
    Console().print(table)


def _spread(values: list[Any]) -> str:
    deviation = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{deviation}"


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], capture_output=True, text=True, cwd=HERE).stdout.strip()


if __name__ == "__main__":
    raise SystemExit(main())
