"""A campaign is a list of runs and seeds; each finished run leaves a record: what was measured, how and where."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import yaml

from nncsl import config, methods
from nncsl.config import Config, build
from nncsl.data.sources import own_place
from nncsl.errors import ConfigError
from nncsl.record import checkpoint
from nncsl.record.journal import Journal

from ..accuracy import records
from ..accuracy.records import Record
from ..provenance import current_commit, processor

HERE = Path(__file__).parent
CAMPAIGNS = HERE / "campaigns"
# What versions that learned something else from the same settings recorded lies beside it, in accuracy-VERSION.
RESULTS = HERE.parent / "results" / "accuracy"


@dataclass(frozen=True)
class Entry:
    """One run of a campaign."""

    campaign: str
    name: str
    seed: int
    preset: str
    settings: tuple[str, ...]
    results: Path
    timed: bool = False

    @property
    def arguments(self) -> list[str]:
        assignments = (part for s in self.settings for part in ("--set", s))
        return ["--preset", self.preset, "--seed", str(self.seed), *assignments]

    def located(self, data_dir: str | None) -> list[str]:
        """The arguments with the place of the data: own images, folder:NAME, lie in that folder by this name."""
        if data_dir is None:
            return self.arguments
        kind, place = own_place(self.config.dataset)
        where = ["--set", f"dataset={kind}:{Path(data_dir) / place}"] if place else ["--data-dir", data_dir]
        return [*self.arguments, *where]

    @cached_property
    def config(self) -> Config:
        """The resolved settings as the run itself will have them, but for where data lies and what computes."""
        overrides = [{"seed": self.seed}, *map(build.parse_assignment, self.settings)]
        return records.comparable(methods.settled(config.load(self.preset, overrides)))

    @property
    def file(self) -> Path:
        return self.results / f"{self.campaign}.jsonl"

    @property
    def folder(self) -> Path:
        return Path("runs") / "campaigns" / self.campaign / f"{self.name}-seed{self.seed}"

    @cached_property
    def record(self) -> Record | None:
        """What was recorded with the settings as they are now, here or by another campaign; None if nothing was.

        A timed campaign takes its own records only: whether other work shared the machine is not in a record. What an
        older version recorded by this name is taken as it is: settings may mean something else since, and the reduced
        presets had another weight of the labels then.
        """
        own = [each for each in records.read(self.file) if each.entry == (self.name, self.seed)]
        if self.results != RESULTS:
            if own and not self.timed:
                return own[0].record
            among = own if self.timed else _all(self.results)
            found = records.first_with(self.config, among)
            if found is None and not any(each.startswith("lambda_lin=") for each in self.settings):
                found = records.first_with(replace(self.config, lambda_lin=Config.lambda_lin), among)
            return found
        return records.first_with(self.config, own if self.timed else [*own, *_all(self.results)])


@dataclass(frozen=True)
class Campaign:
    """title: what pages call its data; entries: all runs of the first seed before those of the second.

    paper: the paper's value of a run, where it has one; anchors: what a public implementation reached under the same
    protocol; reference: the run that the others' differences are taken to;
    timed: whether each run had the machine to itself, so that its wall time means something; counts_bytes: whether runs
    are compared by what they keep beside their student; counts_seconds: whether by the time they take; tunes: whether
    settings are chosen by it, on seeds of 100 and up, which nothing else reports.
    """

    name: str
    title: str
    entries: list[Entry]
    paper: Mapping[str, float] = field(default_factory=dict)
    source: str = ""
    anchors: Mapping[str, float] = field(default_factory=dict)
    reference: str | None = None
    timed: bool = False
    counts_bytes: bool = False
    counts_seconds: bool = False
    tunes: bool = False

    @property
    def runs(self) -> list[str]:
        return list(dict.fromkeys(entry.name for entry in self.entries))

    def records(self, run: str) -> dict[int, Record]:
        """The recorded seeds of a run."""
        return {e.seed: e.record for e in self.entries if e.name == run and e.record is not None}


def recorded_as(settings: Config) -> Record | None:
    """Return what any campaign recorded with these settings, wherever data lay and whatever computed."""
    return records.first_with(records.comparable(methods.settled(settings)), _all(RESULTS))


def names() -> list[str]:
    return sorted(path.stem for path in CAMPAIGNS.glob("*.yaml"))


def read(name: str, version: str | None = None) -> Campaign:
    """Return a campaign with what is recorded of it, now or by an older version."""
    results = RESULTS if version is None else RESULTS.with_name(f"{RESULTS.name}-{version}")
    content = yaml.safe_load((CAMPAIGNS / f"{name}.yaml").read_text())
    timed = content.get("timed", False)
    entries = []
    for seed in content["seeds"]:
        for run, settings in content["runs"].items():
            merged = {**content.get("settings", {}), **(settings or {})}
            assignments = tuple(f"{key}={value}" for key, value in merged.items())
            _refuse_deep(merged.get("dataset", ""))
            entries.append(Entry(name, run, seed, content["preset"], assignments, results, timed))
    paper = dict(content.get("paper", {}))
    source = paper.pop("table", "")
    return Campaign(
        name,
        content.get("title", name),
        entries,
        paper,
        source,
        anchors=content.get("anchors", {}),
        reference=content.get("reference"),
        timed=timed,
        counts_bytes=content.get("bytes", False),
        counts_seconds=content.get("seconds", False),
        tunes=content.get("tunes", False),
    )


def run(entry: Entry, threads: int, data_dir: str | None) -> str:
    """Runs or resumes an entry in a process of its own and records it; says in one line how that went."""
    title = f"{entry.campaign}: {entry.name} seed {entry.seed}"
    if entry.record is not None:
        return f"{title}: recorded"
    begun = _begun(entry)
    where = ["--resume", str(entry.folder)] if begun else ["--out", str(entry.folder), *entry.located(data_dir)]
    commit = current_commit()
    started = time.monotonic()
    failure, cpu_seconds = _train(where, threads)
    if failure:
        return f"{title}: failed ({failure})"
    lines, summary = Journal(entry.folder / "metrics.jsonl").read(), (entry.folder / "summary.json").read_text()
    record = {
        "run": entry.name,
        "seed": entry.seed,
        "summary": json.loads(summary) | {"dataset": entry.config.dataset},
        "command": "nncsl train " + " ".join(entry.arguments),
        "commit": commit,
        "machine": {"processor": processor(), "cores": os.cpu_count(), "threads": threads},
        # Of the whole process: data, sweeps and evaluation too. A resumed run's first part is not known any more.
        "wall_seconds": None if begun else round(time.monotonic() - started, 1),
        "cpu_seconds": None if begun else round(cpu_seconds, 1),
        "steps": steps_taken(entry.folder, lines),
        "weights_sha256": config.read(entry.folder / "config.yaml").network.weights_sha256,
        "config": build.plain(entry.config),
        "curves": curves(lines),
    }
    records.add(entry.file, record)
    vars(entry).pop("record", None)  # looked up before it was there
    return f"{title}: {record['summary']['average_accuracy']:.1f}%"


def curves(lines: list[Record]) -> dict[str, list[float | None]]:
    """The journal's epochs as columns, four digits each; a value that an epoch lacks (no teacher yet) is None."""
    epochs = [line for line in lines if line["kind"] == "epoch"]
    names = dict.fromkeys(key for line in epochs for key in line if key not in ("kind", "phase", "images_per_second"))
    return {name: [_short(line.get(name)) for line in epochs] for name in names}


def steps_taken(folder: Path, lines: list[Record]) -> int | None:
    """Return the steps of a run; None of a method with several phases, whose epochs are of several lengths."""
    epochs = [line for line in lines if line["kind"] == "epoch"]
    if any("phase" in line for line in epochs):
        return None
    steps = checkpoint.load(folder / "checkpoint" / "state.pt")["state"]["steps"]
    return sum(steps[line["task"]] for line in epochs)


def _refuse_deep(dataset: str) -> None:
    """Records know own images by their name alone, wherever they lie."""
    _, place = own_place(dataset)
    if place is not None and place.name != str(place):
        raise ConfigError(f"dataset = {dataset}: expected one name, of what lies directly in --data-dir")


def _begun(entry: Entry) -> bool:
    """Whether the entry's folder holds the beginning of this run; that of one with other settings is removed."""
    if not (entry.folder / "checkpoint" / "state.pt").exists():
        return False
    found = records.settings_of(yaml.safe_load((entry.folder / "config.yaml").read_text()))
    if found is not None and not entry.config.head_outputs:  # the run chose the number, and wrote it down
        found = replace(found, head_outputs=0)
    if found == entry.config:
        return True
    shutil.rmtree(entry.folder)
    return False


def _train(where: list[str], threads: int) -> tuple[str, float]:
    """(why it failed or "", CPU seconds of the process)"""
    command = [sys.executable, "-m", "nncsl", "train", "--quiet", "--no-report", *where]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        lines = process.stderr.read().strip().splitlines()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        return (lines or [f"exit code {process.returncode}"])[-1], 0.0
    return "", usage.ru_utime + usage.ru_stime


def _all(results: Path) -> list[records.Recorded]:
    return [each for path in sorted(results.glob("*.jsonl")) for each in records.read(path)]


def _short(value: float | None) -> float | None:
    """Four digits; whole numbers stay whole."""
    return value if value is None or isinstance(value, int) else float(f"{value:.4g}")
