"""metrics.jsonl: one line per epoch and one per task, in order, each exactly once whatever interrupts the run."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from nncsl.errors import UserError
from nncsl.files import as_csv, parse_json
from nncsl.record import checksums


class Mirror(Protocol):
    """Something that follows the journal in a form of its own."""

    def rebuild(self, lines: Iterable[dict[str, Any]]) -> None:
        """These lines and no others."""

    def add(self, line: dict[str, Any]) -> None:
        """One more line."""


class Journal:
    """Lines are written before the checkpoint that makes them true; `rewind` removes those that never became so."""

    def __init__(self, path: Path, mirror: Mirror | None = None) -> None:
        self._path, self._mirror = path, mirror

    def epoch(self, task: int, epoch: int, **values: Any) -> None:
        self._append({"kind": "epoch", "task": task, "epoch": epoch, **values})

    def task(self, task: int, **values: Any) -> None:
        self._append({"kind": "task", "task": task, **values})

    def rewind(self, task: int, epoch: int) -> None:
        """Keeps what happened before this epoch of this task."""
        kept = [line for line in self.read() if (line["task"], line.get("epoch", float("inf"))) < (task, epoch)]
        checksums.write_text(self._path.parent, self._path.name, "".join(json.dumps(line) + "\n" for line in kept))
        if self._mirror is not None:
            self._mirror.rebuild(kept)

    def read(self) -> list[dict[str, Any]]:
        """All complete lines; a last one that was cut off is not there yet."""
        return read_lines(self._path.parent)

    def _append(self, line: dict[str, Any]) -> None:
        checksums.append_to_journal(self._path.parent, json.dumps(line) + "\n")
        if self._mirror is not None:
            self._mirror.add(line)


class NoJournal(Journal):
    """Of a rank that leaves the writing to another."""

    def __init__(self) -> None:
        super().__init__(Path(os.devnull))

    def rewind(self, task: int, epoch: int) -> None:
        pass

    def _append(self, line: dict[str, Any]) -> None:
        pass


def open_journal(folder: Path) -> Journal:
    """The journal of the run in ``folder``, with the mirrors that the folder asks for by being there."""
    from nncsl.record import tensorboard

    events = folder / tensorboard.FOLDER
    return Journal(folder / checksums.JOURNAL, tensorboard.EventFile(events) if events.is_dir() else None)


def read_lines(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of the run in ``folder``, none where it has no journal; a DamagedError names a damaged one.

    A run that is under way may be writing the last one just now: it is not there yet.
    """
    path = folder / checksums.JOURNAL
    if not path.exists():
        return []
    lines = [parse_json(line, path) for line in checksums.read_journal(folder).splitlines()]
    for number, line in enumerate(lines, 1):
        if not _is_line(line):
            raise UserError(f"{path}, line {number}, is damaged: no epoch and no task; remove it, or copy the run anew")
    return lines


def _is_line(line: Any) -> bool:
    """Whether this is the record of an epoch or of a task."""
    if not isinstance(line, dict) or line.get("kind") not in ("epoch", "task"):
        return False
    numbers = [line.get("task"), line.get("epoch") if line["kind"] == "epoch" else 0]
    return all(type(number) is int and 0 <= number < 2**31 for number in numbers)


def flat(line: dict[str, Any]) -> dict[str, Any]:
    """Lists and mappings as one entry each: accuracy [90.0, 80.0] becomes accuracy_0 and accuracy_1."""
    entries: dict[str, Any] = {}
    for name, value in line.items():
        parts = dict(enumerate(value)) if isinstance(value, list) else value
        if isinstance(parts, dict):
            entries |= flat({f"{name}_{part}": inner for part, inner in parts.items()})
        else:
            entries[name] = value
    return entries


def table(run: Path) -> str:
    """The run's journal as csv; cells without a value are empty. Tasks and epochs count from 0, as in the journal."""
    path = run / checksums.JOURNAL
    if not path.exists():
        raise UserError(f"{run} has no {path.name}: expected the folder of a run that has begun to train")
    rows = [flat(line) for line in read_lines(run)]
    columns = list(dict.fromkeys(["kind", "task", "epoch", *(name for row in rows for name in row)]))
    return as_csv(rows, columns)
