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
from .files import read_small

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
    """A manifest whose checksum is already known to be right; whoever wrote it could write the checksum too."""
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise CorruptBank(f"{path}: is not json ({type(error).__name__}); {REMEDY}") from error
    if not isinstance(fields, dict) or fields.pop("format", None) != FORMAT:
        raise CorruptBank(f"{path}: is not the manifest of a feature bank")
    version = fields.pop("version", None)
    if not _is_count(version):
        raise CorruptBank(f"{path}: has no format version; {REMEDY}")
    if version > VERSION:
        raise BankTooNew(
            f"{path}: the bank has format version {version}, this program reads up to {VERSION}; "
            f"upgrade it (pip install --upgrade nncsl) or use the program that wrote the bank"
        )
    try:
        shards = tuple(ShardEntry(**shard) for shard in fields.pop("shards"))
        made = Generation(**fields, shards=shards)
    except (KeyError, TypeError) as error:
        raise CorruptBank(f"{path}: is not the manifest of a feature bank ({error}); {REMEDY}") from error
    if (wrong := _wrong(made)) is not None:
        raise CorruptBank(f"{path}: {wrong} is not what a feature bank writes there; {REMEDY}")
    return made


def _wrong(made: Generation) -> str | None:
    """The name of a field whose value this program never writes."""
    for name in ("generation", "commit", "dim"):
        if not _is_count(getattr(made, name)):
            return name
    if (
        not isinstance(made.codec, str)
        or not re.fullmatch(r"fp32|fp16|int8|int4|pq\d{0,5}", made.codec)
        or not made.dim
    ):
        return "codec"
    for name, kind in (("normalized", bool), ("teacher", str), ("dataset", str), ("agreement", int | float)):
        value = getattr(made, name)
        if value is not None and not isinstance(value, kind):  # type: ignore[arg-type]
            return name
    for shard in made.shards:
        texts = all(isinstance(text, str) for text in (shard.file, shard.role, shard.sha256))
        if not texts or "/" in shard.file or not (_is_count(shard.rows) and _is_count(shard.bytes)):
            return "shards"
    return None


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**62


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
    try:
        *lines, last = body.decode().splitlines()
        named, following = [(name, expected) for name, expected in map(str.split, lines)], int(last.split()[1])
        if not named or not all(re.fullmatch(r"MANIFEST-\d+-\d+\.json", name) for name, _ in named):
            raise ValueError("it names no manifest of this directory")
    except (ValueError, IndexError) as error:
        raise CorruptBank(f"{current}: is not what a feature bank writes ({error}); {REMEDY}") from error
    generations = []
    for name, expected in named:
        manifest = read_small(directory / name)
        if sha256(manifest) != expected:
            raise CorruptBank(
                f"{directory / name}: is damaged, sha256 {sha256(manifest)}, expected {expected}; {REMEDY}"
            )
        generations.append(parse_generation(directory / name, manifest))
    return State(tuple(generations), following)


def next_generation_by_files(directory: Path) -> int:
    """A number that no file in the directory uses, for starting anew where CURRENT is missing or unreadable."""
    names = [p.name for p in (*directory.glob("MANIFEST-*"), *directory.glob("shards/*"))]
    numbers = [int(m[1]) for m in (re.search(r"(\d{6,})-", name) for name in names) if m]
    return max(numbers, default=0) + 1
