"""What a bank says about itself: one JSON manifest per live generation, and CURRENT, which names them.

CURRENT is replaced last and atomically, so it alone decides what exists. It is protected by a checksum of its own, it
holds the checksum of each manifest, and each manifest holds the checksums of its shards.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import BankTooNew, CorruptBank

FORMAT = "featurebank"
VERSION = 1
CURRENT = "CURRENT"
REMEDY = "restore this file from a copy, or delete the bank and fill it again"


@dataclass(frozen=True)
class ShardEntry:
    file: str  # name within shards/
    role: str
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Generation:
    """The features of one teacher: never mixed with those of another."""

    generation: int
    commit: int
    dim: int
    codec: str
    normalized: bool | None = None
    teacher: str | None = None
    task: Any = None
    views: Any = None
    dataset: str | None = None
    agreement: float | None = None  # of a trained codec, measured on the rows it was trained on
    shards: tuple[ShardEntry, ...] = ()

    @property
    def file(self) -> str:
        return f"MANIFEST-{self.generation:06d}-{self.commit:04d}.json"

    @property
    def rows(self) -> int:
        return sum(shard.rows for shard in self.shards)

    def shard_name(self, role: str) -> str:
        return f"{self.generation:06d}-{role}-{self.commit:04d}.h5"

    def to_bytes(self) -> bytes:
        fields = {"format": FORMAT, "version": VERSION, **dataclasses.asdict(self)}
        return (json.dumps(fields, indent=1) + "\n").encode()


def parse_generation(path: Path, content: bytes) -> Generation:
    """A manifest whose checksum is already known to be right."""
    fields = json.loads(content)
    if fields.pop("format", None) != FORMAT:
        raise CorruptBank(f"{path}: is not the manifest of a feature bank")
    version = fields.pop("version")
    if version > VERSION:
        raise BankTooNew(
            f"{path}: the bank has format version {version}, this program reads up to {VERSION}; "
            f"upgrade it (pip install --upgrade nncsl) or use the program that wrote the bank"
        )
    shards = tuple(ShardEntry(**shard) for shard in fields.pop("shards"))
    return Generation(**fields, shards=shards)


@dataclass(frozen=True)
class State:
    """All that is committed: the live generations, the current one first, and the number the next one gets."""

    generations: tuple[Generation, ...]
    next_generation: int

    def find(self, number: int) -> Generation | None:
        return next((g for g in self.generations if g.generation == number), None)

    def to_bytes(self) -> bytes:
        lines = [f"{g.file} {sha256(g.to_bytes())}\n" for g in self.generations]
        body = "".join([*lines, f"next-generation {self.next_generation}\n"]).encode()
        return body + f"checksum {sha256(body)}\n".encode()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def parse_state(directory: Path, content: bytes) -> State:
    """Check the content of CURRENT and read the manifests that it names. FileNotFoundError when one is missing."""
    current = directory / CURRENT
    body, _, seal = content.rpartition(b"checksum ")
    if seal != f"{sha256(body)}\n".encode():
        raise CorruptBank(f"{current}: is damaged, its checksum does not fit its content; {REMEDY}")
    *lines, last = body.decode().splitlines()
    generations = []
    for name, expected in (line.split() for line in lines):
        manifest = (directory / name).read_bytes()
        if sha256(manifest) != expected:
            raise CorruptBank(
                f"{directory / name}: is damaged, sha256 {sha256(manifest)}, expected {expected}; {REMEDY}"
            )
        generations.append(parse_generation(directory / name, manifest))
    return State(tuple(generations), int(last.split()[1]))


def next_generation_by_files(directory: Path) -> int:
    """A number that no file in the directory uses, for starting anew where CURRENT is missing or unreadable."""
    names = [p.name for p in (*directory.glob("MANIFEST-*"), *directory.glob("shards/*"))]
    numbers = [int(m[1]) for m in (re.search(r"(\d{6,})-", name) for name in names) if m]
    return max(numbers, default=0) + 1
