"""Ctrl-C and SIGTERM while a run trains: heard at once, obeyed where nothing is lost."""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import ClassVar

_PATIENCE = 0.5  # seconds: a step that ends within it is kept, a longer one is thrown away
_FAREWELL = 1.0  # seconds that the main thread has to end by itself after a second Ctrl-C


class Interrupted(Exception):
    """The run stopped because it was asked to; it can be resumed."""


class Interruption:
    """Inside the block a first Ctrl-C or SIGTERM is acknowledged by a line and noted; a second Ctrl-C ends at once.

    A thread hears of signals also while the main one is inside torch for seconds. What is said goes through ``say``.
    """

    _current: ClassVar["Interruption | None"] = None
    _latest: ClassVar["Interruption | None"] = None

    def __init__(self, say: Callable[[str], None] = print) -> None:
        self.requested = self._noted = False
        self._say, self._since = say, 0.0
        self._dispensable: Callable[[], bool] | None = None
        self._previous: dict[int, object] = {}

    def __enter__(self) -> "Interruption":
        self._heard, self._wake = socket.socketpair()
        self._wake.setblocking(False)
        self._listener = threading.Thread(target=self._listen, name="nncsl-signals", daemon=True)
        self._listener.start()
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._note)
        self._woken = signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        Interruption._current = Interruption._latest = self
        return self

    def __exit__(self, *_: object) -> None:
        Interruption._current = None
        signal.set_wakeup_fd(self._woken)
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._wake.close()
        self._listener.join()
        self._heard.close()

    @contextmanager
    def dispensable(self, still: Callable[[], bool]) -> Iterator[None]:
        """Mark work that can be thrown away and done again: :func:`heed` may end it, as long as ``still`` says so."""
        self._dispensable = still
        try:
            yield
        finally:
            self._dispensable = None

    def heed(self) -> None:
        """Raise Interrupted if a stop was requested a while ago and what is being done can be thrown away."""
        due = self.requested and time.monotonic() - self._since > _PATIENCE
        if due and self._dispensable is not None and self._dispensable():
            raise Interrupted

    def _note(self, number: int, frame: FrameType | None) -> None:
        """In the main thread, as soon as it is back in Python."""
        if self._noted and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._noted = True
        self._request()

    def _request(self) -> None:
        if not self.requested:
            self._since = time.monotonic()
            self.requested = True

    def _listen(self) -> None:
        """In a thread of its own, at once."""
        heard = 0
        while found := self._heard.recv(1):
            if found[0] not in (signal.SIGINT, signal.SIGTERM):
                continue
            heard += 1
            if heard == 1:
                self._request()
                self._say(
                    "stopping: the step under way is completed or thrown away, then all is saved; "
                    "Ctrl-C again ends at once"
                )
            elif found[0] == signal.SIGINT:
                self._heard.settimeout(_FAREWELL)
                with suppress(TimeoutError):
                    if not self._heard.recv(1):
                        return  # the main thread has ended the block
                if sys.stdout.isatty():
                    os.write(sys.stdout.fileno(), b"\x1b[?25h\n")  # the bar has hidden the cursor
                os._exit(130)  # what is on disk is whole at any moment


def stop_was_requested() -> bool:
    """Return whether somebody asked the run to stop that is under way, or has just ended."""
    return Interruption._latest is not None and Interruption._latest.requested


def heed() -> None:
    """Let go of work that can be done again, between two of its parts, if somebody has asked the run to stop."""
    if Interruption._current is not None:
        Interruption._current.heed()
