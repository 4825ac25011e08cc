"""What the host prepares for the next step while the device works on this one."""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

import torch

from nncsl.config import Config

A = TypeVar("A")
B = TypeVar("B")


class Ahead:
    """Prepares one item ahead, in one thread of its own, or none; leaving the block ends the thread.

    An error in the thread is raised where its result would have been taken.
    """

    def __init__(self, *, on: bool) -> None:
        self.on = on
        self._pool: ThreadPoolExecutor | None = None
        self._next: Future | None = None

    def __enter__(self) -> "Ahead":
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="nncsl-ahead") if self.on else None
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def each(self, prepare: Callable[[A], B], items: Iterable[A], *, pure: bool = True) -> Iterator[B]:
        """Give ``prepare(item)`` of all items; of pure functions, each while the one before is being used."""
        if self._pool is None or not pure:
            yield from map(prepare, items)
            return
        for item in items:
            ready, self._next = self._next, self._pool.submit(prepare, item)
            if ready is not None:
                yield ready.result()
        if self._next is not None:
            ready, self._next = self._next, None
            yield ready.result()

    def settle(self) -> None:
        """Wait until nothing is being prepared: somebody is about to change files that are read from."""
        if self._next is not None:
            wait([self._next])


def chosen(config: Config, device: torch.device) -> bool:
    """Tell whether steps are prepared ahead: as configured, by default where the device leaves a core free."""
    if config.prefetch != "auto":
        return config.prefetch == "on"
    return device.type != "cpu" and (os.cpu_count() or 1) > 1
