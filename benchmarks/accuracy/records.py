"""What campaigns recorded: a file for each, a line for each finished run. What is compared comes first, curves last."""

import json
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import filelock

from nncsl import config, methods
from nncsl.config import Config
from nncsl.data.sources import own_place
from nncsl.errors import ConfigError
from nncsl.files import parse_json, write_text

Record = dict[str, Any]

# Of a summary, the first things to look for in a line.
FIRST = ("average_accuracy", "average_incremental_accuracy", "forgetting", "fwt", "bwt")


class Recorded(NamedTuple):
    """One line. settings: as comparable() gives them; None: one of them means nothing any more."""

    record: Record
    settings: Config | None

    @property
    def entry(self) -> tuple[str, int]:
        """The run's name and seed, of which a file has one line."""
        return self.record["run"], self.record["seed"]


def read(path: Path) -> tuple[Recorded, ...]:
    """Return the lines of a campaign's file; none where it does not exist."""
    if not path.exists():
        return ()
    found = path.stat()
    return _read(path, (found.st_mtime_ns, found.st_ino, found.st_size))


def add(path: Path, record: Record) -> None:
    """Write a run's record into its campaign's file, in place of an earlier one of that run and seed.

    The file is sorted by run and seed, so that a difference shows what was added, and is replaced as a whole. Several
    processes may add to it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(path.with_suffix(".lock")):
        kept = {(each["run"], each["seed"]): each for each in [*_lines(path), record]}
        write_text(path, "".join(line(kept[entry]) for entry in sorted(kept)))


def line(record: Record) -> str:
    """Return a record as a line: run, seed, results, how they were made, and what is long at the end."""
    found = record["summary"]
    lists_last = sorted(found.items(), key=lambda item: isinstance(item[1], list))
    summary = {key: found[key] for key in FIRST if key in found} | dict(lists_last)
    first = {"run": record["run"], "seed": record["seed"], "summary": summary}
    return json.dumps(first | {key: value for key, value in record.items() if key not in first}) + "\n"


def first_with(settings: Config, among: Iterable[Recorded]) -> Record | None:
    """Return the first record of a run with these settings, as comparable() gives them."""
    return next((each.record for each in among if each.settings == settings), None)


def settings_of(recorded: Record) -> Config | None:
    """Return recorded settings; those that did not exist yet have their defaults."""
    try:
        return comparable(config.recorded(recorded))
    except ConfigError:
        return None


def comparable(settings: Config) -> Config:
    """Return settings without those that say where files lie and what computes, or that the method never reads."""
    network = settings.network
    if network.weights is not None:  # wherever they lie; their checksum is in the record
        network = replace(network, weights=Path(network.weights).name, weights_sha256=None)
    if not methods.find(settings.method).weighs_labels:
        settings = replace(settings, lambda_lin=Config.lambda_lin)
    kind, place = own_place(settings.dataset)
    dataset = settings.dataset if place is None else f"{kind}:{place.name}"  # own images: by name, wherever they lie
    return replace(settings, dataset=dataset, data_dir=None, cache_dir=None, device="auto", network=network)


@cache
def _read(path: Path, _written: tuple[int, ...]) -> tuple[Recorded, ...]:
    """Read again where the file is another one since."""
    return tuple(Recorded(record, settings_of(record["config"])) for record in _lines(path))


def _lines(path: Path) -> list[Record]:
    return [parse_json(text, path) for text in path.read_text().splitlines()] if path.exists() else []
