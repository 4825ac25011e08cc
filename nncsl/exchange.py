"""What processes that share a run say to each other: tensors and small things, counted and timed.

All of them make the same calls in the same order. Whatever goes wrong on the way is a :class:`RankLostError`.
"""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nncsl.errors import UserError

T = TypeVar("T")


class RankLostError(UserError):
    """Another rank has ended, or can't be reached any more."""

    exit_code = 4


@dataclass
class Traffic:
    """What this rank has sent, in bytes of tensors as a ring of ranks sends them, and seconds that it waited for it."""

    bytes: float = 0.0
    seconds: float = 0.0
    steps: int = 0
    bytes_in_steps: float = 0.0
    seconds_in_steps: float = 0.0
    _step_began: tuple[float, float] | None = None

    def begin_step(self) -> None:
        """Count what follows as a step's."""
        self._step_began = self._step_began or (self.bytes, self.seconds)

    def end_step(self) -> None:
        """The step's last exchange is done."""
        sent, waited = self._step_began or (self.bytes, self.seconds)
        self.bytes_in_steps += self.bytes - sent
        self.seconds_in_steps += self.seconds - waited
        self.steps, self._step_began = self.steps + 1, None

    def per_step(self) -> dict[str, float]:
        """Return the means, for the summary."""
        steps = max(1, self.steps)
        return {"bytes_per_step": self.bytes_in_steps / steps, "waiting_per_step": self.seconds_in_steps / steps}


class Exchange:
    """Rank ``rank`` of ``count``. A batch has units, ``units`` of them; unit u belongs to rank u mod ``count``.

    group, host: torch's groups for tensors of the device and of the host; None: the default group.
    """

    def __init__(self, rank: int, count: int, units: int, group: Any = None, host: Any = None) -> None:
        self.rank, self.count, self.units = rank, count, units
        self.own = tuple(range(rank, units, count))
        self.traffic = Traffic()
        self._group, self._host = group, host or group

    @property
    def writes(self) -> bool:
        """Whether this rank writes the run's files, and speaks."""
        return self.rank == 0

    @property
    def alone(self) -> bool:
        """Whether nobody else takes part."""
        return self.count == 1

    def gather(self, rows: Tensor, counts: Sequence[int]) -> list[Tensor]:
        """Return the rows of all units, [counts[u], ...] each, from those of this rank's units one after the other."""
        ranks = range(self.count)
        totals = [sum(counts[r :: self.count]) for r in ranks]
        pieces: list[list[Tensor]] = []
        if self.alone:
            pieces = [list(rows.split(list(counts)))]
        else:
            padded = rows.new_zeros((max(totals), *rows.shape[1:]))
            padded[: len(rows)] = rows
            everyone = [torch.empty_like(padded) for _ in ranks]
            with self._talking((self.count - 1) * padded.nbytes):
                dist.all_gather(everyone, padded, group=self._of(rows))
            pieces = [list(everyone[r][: totals[r]].split(list(counts[r :: self.count]))) for r in ranks]
        return [pieces[unit % self.count][unit // self.count] for unit in range(len(counts))]

    def add(self, values: Tensor) -> Callable[[], Tensor]:
        """Begin to add up tensors over ranks, in place; the function that is returned waits and gives the sum."""
        with self._talking(2 * (self.count - 1) / self.count * values.nbytes):
            work = dist.all_reduce(values, group=self._of(values), async_op=True)

        def total() -> Tensor:
            with self._talking(0):
                work.wait()
            return values

        return total

    def add_units(self, values: Sequence[Tensor]) -> Tensor:
        """Return the sum over all units in their order, from this rank's units' [n] each: the same bits for any count.

        Every rank adds a part of the values, then all get all parts.
        """
        if self.alone:
            return _in_order(values)
        size = -(-len(values[0]) // self.count)
        table = values[0].new_zeros(self.count, len(values), size)
        for place, value in enumerate(values):
            padded = torch.nn.functional.pad(value, (0, size * self.count - len(value)))
            table[:, place] = padded.view(self.count, size)
        held = [len(range(rank, self.units, self.count)) for rank in range(self.count)]
        arriving = table.new_empty(sum(held) * size)
        with self._talking((self.count - 1) * len(values) * size * table.element_size()):
            sent, received = [len(values) * size] * self.count, [units * size for units in held]
            dist.all_to_all_single(arriving, table.flatten(), received, sent, group=self._of(table))
        by_rank = [part.view(-1, size) for part in arriving.split(received)]
        mine = _in_order([by_rank[unit % self.count][unit // self.count] for unit in range(self.units)])
        return torch.cat(self.gather(mine, [size] * self.count))[: len(values[0])]

    def send(self, values: Tensor) -> Tensor:
        """Return rank 0's tensor; others give one of the same shape, which is overwritten."""
        if not self.alone:
            with self._talking(values.nbytes * (self.count - 1) / self.count):
                dist.broadcast(values, group=self._of(values), group_src=0)
        return values

    def send_module(self, module: nn.Module) -> None:
        """Give every rank the parameters and buffers that the module has on rank 0."""
        for tensor in (*module.parameters(), *module.buffers()):
            self.send(tensor.data)

    def say(self, value: T) -> T:
        """Return rank 0's value, any that can be pickled, with the training's patience."""
        return self._say(value, self._host)

    def collect(self, rows: Tensor | None, counts: Sequence[int]) -> Tensor:
        """Return the rows of all batches, whose sizes are ``counts`` and which ranks have taken in turn.

        rows: those of this rank's batches, one after the other; None if it had none.
        """
        if self.alone:
            assert rows is not None
            return rows
        like = self.say((rows.shape[1:], rows.dtype, rows.device.type) if self.writes and rows is not None else None)
        assert like is not None
        mine = torch.empty((0, *like[0]), dtype=like[1], device=like[2]) if rows is None else rows
        return torch.cat(self.gather(mine, counts))

    def _say(self, value: T, group: Any) -> T:
        if self.alone:
            return value
        box = [value]
        with self._talking(0):
            dist.broadcast_object_list(box, group=group, group_src=0)
        return box[0]

    def _of(self, tensor: Tensor) -> Any:
        return self._host if tensor.device.type == "cpu" else self._group

    @contextmanager
    def _talking(self, size: float) -> Iterator[None]:
        self.traffic.bytes += size
        began = time.perf_counter()
        try:
            with noticing_the_lost():
                yield
        finally:
            self.traffic.seconds += time.perf_counter() - began


@contextmanager
def noticing_the_lost() -> Iterator[None]:
    """Raise a RankLostError for whatever goes wrong between ranks inside the block."""
    try:
        yield
    except RuntimeError as error:  # torch's own errors of this kind, and what gloo and NCCL raise
        said = re.sub(r"^(\[[^]]*\] )+|\. This is typically.*", "", str(error).splitlines()[0])
        raise RankLostError(f"another rank has ended or can't be reached ({said})") from error


def _in_order(values: Sequence[Tensor]) -> Tensor:
    total = values[0].clone()
    for value in values[1:]:
        total += value
    return total
