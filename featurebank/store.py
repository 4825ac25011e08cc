"""The directory of a bank: checked on the way in, changed atomically, cleaned of what a crash left behind."""

from __future__ import annotations

import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from .errors import BankLocked, BankMismatch, CorruptBank
from .files import TEMPORARY, Disk, explained, publish, read_small, sha256_of
from .lock import HeldError, PortableLock, WriterLock, lock
from .manifest import CURRENT, REMEDY, Generation, ShardEntry, State, parse_state

LOCK = "LOCK"
T = TypeVar("T")


class Store:
    """Knows where the files are and in which order they may change. One per open bank."""

    def __init__(self, path: Path, disk: Disk):
        self.path, self.disk = path, disk
        self.shards = path / "shards"
        self.state = State((), 1)
        self._current = b""  # CURRENT as it was when the state was loaded
        self.lock: WriterLock | PortableLock | None = None

    def acquire(self) -> None:
        """Become the writer of this bank, or raise BankLocked."""
        if self.shards.is_symlink():
            raise CorruptBank(f"{self.shards}: is a link, expected a directory; remove it, then fill the bank again")
        try:
            with explained(self.path / LOCK, 0):
                self.lock = lock(self.path / LOCK)
        except HeldError as holder:
            raise BankLocked(
                f"{self.path} is being written by {holder}. A bank has one writer at a time: wait for it, stop it, "
                "or open with mode='r'"
            ) from None

    def release(self) -> None:
        if self.lock is not None:
            self.lock.release()
            self.lock = None

    def load(self) -> None:
        try:
            self._current = read_small(self.path / CURRENT)
            self.state = parse_state(self.path, self._current)
        except FileNotFoundError:
            raise  # perhaps only evicted meanwhile: for the caller to find out
        except OSError as error:
            raise CorruptBank(f"{error.filename}: {error.strerror}; {REMEDY}") from error

    def consistently(self, use: Callable[[], T]) -> T:
        """Load the state and use it; start over if a writer replaced it meanwhile and removed files that it named."""
        while True:
            try:
                self.load()
                return use()
            except (FileNotFoundError, CorruptBank) as error:
                if self._replaced():
                    continue
                if isinstance(error, CorruptBank):
                    raise
                raise CorruptBank(f"{error.filename or error}: is listed in the bank but missing; {REMEDY}") from None

    def _replaced(self) -> bool:
        """Whether CURRENT is another one than was loaded."""
        try:
            return read_small(self.path / CURRENT) != self._current
        except OSError:
            return False

    def demanded(self, number: int | None, expected: dict[str, Any]) -> Generation:
        """The generation to serve, if it is there and is what the caller expects."""
        served = self.state.generations[0] if number is None else self.state.find(number)
        if served is None:
            have = ", ".join(f"{g.generation} (teacher {g.teacher})" for g in self.state.generations)
            raise BankMismatch(f"{self.path}: expected generation {number}, the bank has {have}")
        for what, value in expected.items():
            if value is not None and (recorded := getattr(served, what)) != value:
                raise BankMismatch(
                    f"{self.path}: generation {served.generation} was made with another {what}: expected {value}, "
                    f"the bank has {recorded}; fill it anew with begin_generation()"
                )
        return served

    def shard_path(self, shard: ShardEntry) -> Path:
        return self.shards / shard.file

    def verify(self) -> None:
        """Compare every shard of every live generation with its checksum; CorruptBank lists all that differ."""
        damaged = []
        for shard in (shard for generation in self.state.generations for shard in generation.shards):
            path = self.shard_path(shard)
            found = path.stat()
            size = found.st_size if stat.S_ISREG(found.st_mode) else 0
            if size != shard.bytes:
                damaged.append(f"{path}: is damaged, {size:,} bytes, expected {shard.bytes:,}")
            elif (digest := sha256_of(path)) != shard.sha256:
                damaged.append(f"{path}: is damaged, sha256 {digest}, expected {shard.sha256}")
        if damaged:
            raise CorruptBank("\n".join([*damaged, REMEDY]))

    def check_free(self, overwrite: bool) -> None:
        """FileExistsError unless a bank may be created here."""
        path = self.path
        if path.exists() and not path.is_dir():
            raise FileExistsError(f"{path} is a file; a bank is a directory")
        if (path / CURRENT).exists():
            if not overwrite:
                raise FileExistsError(
                    f"{path} holds a bank already; open it with mode='a', or replace it with overwrite=True"
                )
            return
        own = ("MANIFEST-*", "*.tmp", "shards", f"{LOCK}*")
        foreign = [p.name for p in path.glob("*") if not any(p.match(pattern) for pattern in own)]
        if foreign:
            raise FileExistsError(
                f"{path} holds other files ({', '.join(foreign[:3])}); give the bank a directory of its own"
            )

    def create_directories(self) -> None:
        """Make the bank's directories and let their own existence survive a power loss."""
        with explained(self.shards, 0):
            missing = [p for p in (self.shards, *self.shards.parents) if not p.exists()]
            self.disk.make_directory(self.shards)
            for directory in reversed(missing):
                self.disk.sync_directory(directory.parent)

    def commit(self, generations: tuple[Generation, ...], next_generation: int) -> None:
        """Make `generations` (current first) the state of the bank. Their shards must be sealed.

        The rename of CURRENT is the moment of truth: before it the old state holds, after its sync the new one.
        """
        state = State(generations, next_generation)
        if any(shard for g in generations for shard in g.shards):
            self.disk.sync_directory(self.shards)
        for generation in generations:
            if generation not in self.state.generations:
                publish(self.disk, self.path / generation.file, generation.to_bytes())
        publish(self.disk, self.path / CURRENT, state.to_bytes())
        self.state = state
        self.clean()

    def clean(self) -> None:
        """Remove files that nothing refers to: left by a crash, or superseded. Only the writer may do this."""
        listed = {g.file for g in self.state.generations}
        listed |= {shard.file for g in self.state.generations for shard in g.shards}
        for pattern in ("MANIFEST-*.json", f"*{TEMPORARY}", "shards/*.h5", f"shards/*{TEMPORARY}"):
            for path in sorted(self.path.glob(pattern)):
                if path.name not in listed:
                    with suppress(OSError):  # an orphan does no harm, and the next writer tries again
                        self.disk.remove(path)
