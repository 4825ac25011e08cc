"""RUN/SHA256SUMS: what every file of a run has to be, so that damage is noticed before it becomes a result.

The list is in the format of ``sha256sum -c``; its last line is a checksum of its own. A file that is about to be
replaced is announced first and has two lines until the next announcement: whatever moment a run is killed in, what is
found under its name is one of the two. A folder without the list is not checked: it is of an older version, or
somebody has deleted the list to have files taken as they are.
"""

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from nncsl import files
from nncsl.errors import DamagedError
from nncsl.featurebank.files import sha256_of

NAME = "SHA256SUMS"
JOURNAL = "metrics.jsonl"
_LINE = re.compile(r"([0-9a-f]{64})  (.+)")
T = TypeVar("T")
Sums = dict[str, list[str]]  # by a file's name in the run's folder, the newest first


def begin(folder: Path) -> None:
    """Give a run's folder its list, or settle the one that is there; for the folder's owner, before it writes."""
    listed = _read(folder) or {}
    _write(folder, {name: [digest] for name, sums in listed.items() if (digest := _found(folder / name, sums))})


def announce(folder: Path, digests: Mapping[str, str]) -> None:
    """List what files are about to become; those that were announced before have arrived."""
    listed = _read(folder)
    if listed is None:
        return
    settled = {name: sums[:1] for name, sums in listed.items()}
    _write(folder, settled | {name: [digest, *settled.get(name, [])] for name, digest in digests.items()})


def of_second_name(folder: Path, name: str, new: str) -> dict[str, str]:
    """Return what a file's content has to be announced as when it gets the name ``new`` as well."""
    listed = (_read(folder) or {}).get(name)
    return {new: listed[0]} if listed else {}


def forget(folder: Path, *names: str) -> None:
    """Take files that are about to go off the list."""
    listed = _read(folder)
    if listed is not None and any(name in listed for name in names):
        _write(folder, {name: sums[:1] for name, sums in listed.items() if name not in names})


def listing(folder: Path, name: str) -> Callable[[Path], None]:
    """Return what :func:`nncsl.files.write_file` takes as ``before_rename``, for a file of a run."""
    return lambda beside: announce(folder, {name: sha256_of(beside)})


def write_text(folder: Path, name: str, text: str) -> None:
    """Write a small text file of a run."""
    content = text.encode()
    files.write_file(
        folder / name, lambda file: file.write(content), size=len(content), before_rename=listing(folder, name)
    )


def check(folder: Path, name: str, most: int = files.LARGEST_TEXT) -> None:
    """Raise a DamagedError unless a file that exists is what was written there, or is not listed.

    most: bytes that it may have at all, so that nobody has to wait for the checksum of what never ends.
    """
    files.check_regular(folder / name, most)
    _listed(folder, name, lambda path: [(sha256_of(path), None)])


def read_journal(folder: Path) -> str:
    """Return the journal's lines; a DamagedError if they are not what was written.

    What follows the listed lines was cut off, or was never announced: it is left out.
    """
    return _listed(folder, JOURNAL, lambda path: _beginnings(files.read_bytes(path))).decode()


def append_to_journal(folder: Path, line: str) -> None:
    """Announce a line of the journal, then write it."""
    path = folder / JOURNAL
    content = (path.read_bytes() if path.exists() else b"") + line.encode()
    announce(folder, {JOURNAL: hashlib.sha256(content).hexdigest()})
    files.append(path, line)


def _beginnings(journal: bytes) -> list[tuple[str, bytes]]:
    """The journal's first lines, all that are complete, all but the last, and so on, with their checksums."""
    found, running, end = [], hashlib.sha256(), 0
    for line in journal.splitlines(keepends=True):
        found.append((running.hexdigest(), journal[:end]))
        if line.endswith(b"\n"):
            running.update(line)
            end += len(line)
    return [(running.hexdigest(), journal[:end]), *reversed(found)]


def _listed(folder: Path, name: str, versions: Callable[[Path], list[tuple[str, T]]]) -> T:
    """Return the first version, by checksum, that is listed; the very first where the file is not listed at all."""
    path = folder / name
    while True:
        sums, found = _read(folder), versions(path)
        if sums is None or name not in sums:
            return found[0][1]
        for digest, version in found:
            if digest in sums[name]:
                return version
        if _read(folder) == sums:  # else the run may have replaced the file between the two looks
            raise DamagedError(
                f"{path} can't be read: it is damaged, its sha256 is {found[0][0]}, expected {sums[name][0]}. "
                f"Restore it from a copy; or, if it was changed on purpose, delete {folder / NAME}: "
                "then the run's files are taken as they are"
            )


def _found(path: Path, sums: list[str]) -> str | None:
    """Return which of its checksums a file has; the newest if none: whoever reads it will notice. None without it."""
    if not path.exists():
        return None
    if len(sums) == 1:
        return sums[0]
    found = [digest for digest, _ in _beginnings(path.read_bytes())] if path.name == JOURNAL else [sha256_of(path)]
    return next((digest for digest in found if digest in sums), sums[0])


def _read(folder: Path) -> Sums | None:
    path = folder / NAME
    if not os.path.lexists(path):
        return None
    body, _, seal = files.read_bytes(path).rpartition(b"# ")
    lines = []
    with suppress(UnicodeDecodeError):
        lines = [_LINE.fullmatch(line) for line in body.decode().splitlines()]
    if seal != hashlib.sha256(body).hexdigest().encode() + b"\n" or None in lines:
        raise DamagedError(
            f"{path} can't be read: it is damaged. Restore it from a copy; or delete it: then the run's files are "
            "taken as they are"
        )
    sums: Sums = {}
    for line in lines:
        assert line is not None
        sums.setdefault(line[2], []).append(line[1])
    return sums


def _write(folder: Path, sums: Sums) -> None:
    lines = [f"{digest}  {name}\n" for name, digests in sorted(sums.items()) for digest in dict.fromkeys(digests)]
    body = "".join(lines).encode()
    files.write_bytes(folder / NAME, body + f"# {hashlib.sha256(body).hexdigest()}\n".encode())
