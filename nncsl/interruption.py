"""Ctrl-C and SIGTERM ask a run to stop; it does so after the step it is in, with everything saved."""

import signal
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import TypeVar

T = TypeVar("T")


class Interrupted(Exception):
    """The run stopped because it was asked to; it can be resumed."""


class Interruption:
    """Inside the block the first signal is only noted; a second Ctrl-C stops at once."""

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[int, object] = {}

    def __enter__(self) -> "Interruption":
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def guard(self, items: Iterable[T]) -> Iterator[T]:
        """The items, until a stop is requested: then Interrupted."""
        for item in items:
            if self.requested:
                raise Interrupted
            yield item

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = True
