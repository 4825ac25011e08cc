"""Changing a disk so that a crash at any moment leaves the old state or the new one, never something between.

A file is built under a temporary name that nobody can foresee in its own directory, synced, renamed to its final name,
and the directory is synced. Only then may anything refer to it. Links are replaced, never followed. All changes pass
through `Disk`, so that the crash tests can record every single one of them and replay each prefix as a crash.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

TEMPORARY = ".tmp"
LARGEST_TEXT = 16 << 20  # bytes of CURRENT or of a manifest: 100,000 shards
_OUT_OF_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EROFS, errno.EACCES, errno.EPERM)
FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)  # the former is POSIX's, the latter Windows's
_moving = threading.Lock()


class Disk:
    """The calls by which a bank changes a disk, and no others."""

    def make_directory(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def create(self, path: Path) -> int:
        """Make a file that is not there yet."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | FLAGS, 0o644)

    def write(self, descriptor: int, data: memoryview, offset: int) -> None:
        """Write all of `data` (bytes) at `offset`."""
        while len(data):
            written = write_at(descriptor, data, offset)
            data, offset = data[written:], offset + written

    def truncate(self, descriptor: int, size: int) -> None:
        os.ftruncate(descriptor, size)

    def sync(self, descriptor: int) -> None:
        os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def replace(self, source: Path, target: Path) -> None:
        source.replace(target)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def sync_directory(self, path: Path) -> None:
        if not hasattr(os, "O_DIRECTORY"):  # Windows opens no directories, and keeps a rename without that
            return
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | FLAGS)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def read_at(descriptor: int, buffer: memoryview, offset: int) -> int:
    """Read into `buffer` (bytes) from `offset` on; return how many were read. Threads may share the descriptor."""
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, (buffer,), offset)
    with _moving:  # Windows and macOS: the descriptor has one place
        os.lseek(descriptor, offset, os.SEEK_SET)
        found = os.read(descriptor, len(buffer))
    buffer[: len(found)] = found
    return len(found)


def write_at(descriptor: int, data: memoryview, offset: int) -> int:
    """Write `data` (bytes) at `offset`; return how many were written. Threads may share the descriptor."""
    if hasattr(os, "pwrite"):
        return os.pwrite(descriptor, data, offset)
    with _moving:
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.write(descriptor, data)


def name_beside(path: Path) -> Path:
    """A temporary name in the same directory."""
    return path.with_name(f"{path.name}.{secrets.token_hex(8)}{TEMPORARY}")


def publish(disk: Disk, path: Path, content: bytes) -> None:
    """Make `path` hold `content`, durably and all at once."""
    beside = name_beside(path)
    with explained(path, len(content)):
        try:
            descriptor = disk.create(beside)
            try:
                disk.write(descriptor, memoryview(content), 0)
                disk.sync(descriptor)
            finally:
                disk.close(descriptor)
            disk.replace(beside, path)
        except OSError:
            with suppress(OSError):
                disk.remove(beside)
            raise
        disk.sync_directory(path.parent)


@contextmanager
def explained(path: Path, needed: int) -> Iterator[None]:
    """Turn 'no space left' and 'read-only' into an error that says how much is needed, and free, and what is intact."""
    try:
        yield
    except OSError as error:
        if error.errno not in (*_OUT_OF_ROOM, *_FORBIDDEN):
            raise
        parent = next(p for p in (path, *path.parents) if p.is_dir())
        advice = (
            "free some space" if error.errno in _OUT_OF_ROOM else "make the directory writable, or open with mode='r'"
        )
        raise OSError(
            error.errno,
            f"{os.strerror(error.errno or 0)}: writing needs {needed:,} bytes, "
            f"{shutil.disk_usage(parent).free:,} are free; what was committed before is intact; {advice}",
            str(path),
        ) from error


def read_small(path: Path, most: int = LARGEST_TEXT) -> bytes:
    """What a regular file of at most `most` bytes holds; OSError for anything else, which is not even opened."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "is not a regular file", str(path))
    if found.st_size > most:
        raise OSError(errno.EFBIG, f"has {found.st_size:,} bytes, expected at most {most:,}", str(path))
    with path.open("rb") as file:
        return file.read(most)


def sha256_of(path: Path) -> str:
    """Hash a file in small blocks, so that checking a large bank needs no memory."""
    digest = hashlib.sha256()
    block = bytearray(1 << 20)
    view = memoryview(block)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(block):
            digest.update(view[:count])
    return digest.hexdigest()
