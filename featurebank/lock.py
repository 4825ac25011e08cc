"""One holder at a time: a lock that a killed process releases by itself and a forked child never inherits."""

from __future__ import annotations

import json
import os
import socket
import stat
import sys
import weakref
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

from .files import FLAGS, read_small

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


class HeldError(Exception):
    """Somebody else holds the lock; the message says who."""


_held: weakref.WeakSet[WriterLock] = weakref.WeakSet()


class WriterLock:
    """Exclusive `flock` on a small file that names its holder. It exists only while somebody writes (or was killed)."""

    def __init__(self, path: Path):
        self.path = path
        self._descriptor: int | None = self._acquire()
        _held.add(self)

    def _acquire(self) -> int:
        while True:
            _remove_foreign(self.path)
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | FLAGS, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                content = os.pread(descriptor, 4096, 0)
                os.close(descriptor)
                raise HeldError(_describe(content)) from None
            except BaseException:
                os.close(descriptor)
                raise
            if self._is_current(descriptor):
                break
            os.close(descriptor)  # the holder removed the file between our open and our lock: that lock guards nothing
        with suppress(OSError):  # a full disk: it is held all the same, only nameless
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, _ourselves(), 0)
        return descriptor

    def _is_current(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), self.path.lstat())
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Safe to call twice. The file goes first: whoever locks the orphan sees that and tries again."""
        if self._descriptor is None:
            return
        with suppress(OSError):
            self.path.unlink(missing_ok=True)
        os.close(self._descriptor)
        self._descriptor = None

    def forget(self) -> None:
        """In a forked child: let go of the inherited descriptor without unlocking, the parent still writes."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class PortableLock:
    """The same promise where there is no `flock`, by the package filelock: the system's own lock on Windows."""

    def __init__(self, path: Path):
        import filelock

        self.path = path
        self._lock = filelock.FileLock(path.with_name(path.name + ".held"), timeout=0)
        try:
            self._lock.acquire()
        except filelock.Timeout:
            raise HeldError(_describe(read_small(path) if path.exists() else b"")) from None
        _remove_foreign(path)
        path.write_bytes(_ourselves())

    def release(self) -> None:
        """Safe to call twice."""
        if self._lock.is_locked:
            self.path.unlink(missing_ok=True)
            self._lock.release()


def lock(path: Path) -> WriterLock | PortableLock:
    """Return the lock, held; HeldError names another holder."""
    return PortableLock(path) if fcntl is None else WriterLock(path)


def _ourselves() -> bytes:
    who = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": " ".join(sys.argv)[:200],
    }
    return json.dumps(who).encode()


def _remove_foreign(path: Path) -> None:
    """Remove what no holder has put there, a link for instance: what it leads to is somebody else's."""
    with suppress(FileNotFoundError):
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            path.unlink()


def _describe(content: bytes) -> str:
    try:
        who = json.loads(content)
        return f"process {who['pid']} on {who['host']} since {who['since']} ({who['command'] or 'interactive'})"
    except (ValueError, KeyError, TypeError, RecursionError):
        return "another process"


def _forget_in_child() -> None:
    for lock in list(_held):
        lock.forget()
    _held.clear()


if hasattr(os, "register_at_fork"):  # Windows does not fork
    os.register_at_fork(after_in_child=_forget_in_child)
