"""One writer per bank: an exclusive lock that a killed process releases by itself and a forked child never inherits."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import sys
import weakref
from datetime import datetime, timezone
from pathlib import Path

from .errors import BankLocked

_held: weakref.WeakSet[WriterLock] = weakref.WeakSet()


class WriterLock:
    """Exclusive `flock` on a small file that names its holder. It exists only while somebody writes (or was killed)."""

    def __init__(self, path: Path):
        self.path = path
        self._descriptor: int | None = self._acquire()
        _held.add(self)

    def _acquire(self) -> int:
        while True:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = _describe(os.pread(descriptor, 4096, 0))
                os.close(descriptor)
                raise BankLocked(
                    f"{self.path.parent} is being written by {holder}. A bank has one writer at a time: wait for it, "
                    f"stop it, or open with mode='r'"
                ) from None
            except BaseException:
                os.close(descriptor)
                raise
            if self._is_current(descriptor):
                break
            os.close(descriptor)  # the holder removed the file between our open and our lock: that lock guards nothing
        who = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "command": " ".join(sys.argv)[:200],
        }
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(who).encode(), 0)
        return descriptor

    def _is_current(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), self.path.stat())
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Safe to call twice. The file goes first: whoever locks the orphan sees that and tries again."""
        if self._descriptor is None:
            return
        self.path.unlink(missing_ok=True)
        os.close(self._descriptor)
        self._descriptor = None

    def forget(self) -> None:
        """In a forked child: let go of the inherited descriptor without unlocking, the parent still writes."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _describe(content: bytes) -> str:
    try:
        who = json.loads(content)
        return f"process {who['pid']} on {who['host']} since {who['since']} ({who['command'] or 'interactive'})"
    except (ValueError, KeyError, TypeError):
        return "another process"


def _forget_in_child() -> None:
    for lock in list(_held):
        lock.forget()
    _held.clear()


os.register_at_fork(after_in_child=_forget_in_child)
