"""Ranks: the processes that share a run, and everything that they say to each other.

A pass over a batch is cut into units, and unit u belongs to rank u mod N. By default there are as many units as ranks;
with ``exact`` there are always ``EXACT_UNITS`` of them, whose sums are taken in their order, so that the number of
ranks does not show in a single bit. Everything else (losses, memory, optimizer) is computed by all ranks alike.
"""

import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nncsl import passes
from nncsl.batches import Batch, Render
from nncsl.errors import UserError
from nncsl.networks import Network
from nncsl.passes import Forward, Passes

EXACT_UNITS = 8
_PATIENCE = timedelta(hours=6)  # while one rank prepares data or plans; a rank that dies is noticed at once

T = TypeVar("T")


class RankLostError(UserError):
    """Another rank has ended, or can't be reached any more."""

    exit_code = 4


class _EndedElsewhereError(UserError):
    """What rank 0 has said already; this rank ends in silence, with the same exit code."""


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


class Ranks:
    """This process's place among ``count`` that share a run. Made without arguments: a run of one process."""

    def __init__(self, exact: bool = False, rank: int = 0, count: int = 1, group: Any = None, host: Any = None) -> None:
        self.exact, self.rank, self.count = exact, rank, count
        self.units = EXACT_UNITS if exact else count
        self.own = tuple(range(rank, self.units, count))
        self.traffic = Traffic()
        self._group, self._host = group, host or group  # of the device's tensors, and of the host's
        self._asked: tuple[Any, Tensor] | None = None
        self._gradients: Any = None

    @property
    def writes(self) -> bool:
        """Whether this rank writes the run's files, and speaks."""
        return self.rank == 0

    @property
    def alone(self) -> bool:
        """Whether nobody else takes part."""
        return self.count == 1

    # A step's part: pixels, the pass, its gradients.

    def views(self, batch: Batch, render: Render) -> Any:
        """Return the pixels of a batch by group; with several units, rendered when and as far as they are asked for."""
        self.traffic.begin_step()
        if self.units == 1:
            return {name: render(group.keys) for name, group in batch.items()}
        from nncsl.passes.shared import Views

        return Views(batch, render, self)

    def forward(self, network: Network, how: Passes) -> Forward:
        """Return the network's pass: each rank's share of the rows, and the outputs of all."""
        if self._gradients is not None:
            self._gradients.close()
        if self.units == 1:
            return passes.forward(network, how)
        from nncsl.passes.shared import Gradients, SharedForward

        self._gradients = Gradients(network, self, at_once=not how.micro_batch)
        return SharedForward(network, how, self._gradients)

    def sum_gradients(self) -> None:
        """Complete the gradients after a backward pass: what each rank's share of rows gave is added over ranks."""
        if self._gradients is not None:
            self._gradients.finish()
        self.traffic.end_step()

    # Exchanges. All ranks call them in the same order.

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

    def add(self, values: Tensor, *, wait: bool = True) -> Callable[[], Tensor]:
        """Begin to add up tensors over ranks, in place; the function that is returned waits and gives the sum."""
        with self._talking(2 * (self.count - 1) / self.count * values.nbytes, waits=wait):
            work = dist.all_reduce(values, group=self._of(values), async_op=True)
            if wait:
                work.wait()

        def done() -> Tensor:
            with self._talking(0):
                work.wait()
            return values

        return done

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

    def agreed(self, wish: bool) -> bool:
        """Return whether any rank wished it when it was last asked: the answer is one call late, so nobody waits."""
        if self.alone:
            return wish
        found = False
        if self._asked is not None:
            work, wishes = self._asked
            with self._talking(0):
                work.wait()
            found = bool(wishes.item())
        wishes = torch.tensor([int(wish)])
        with self._talking(wishes.nbytes):
            self._asked = dist.all_reduce(wishes, dist.ReduceOp.MAX, group=self._host, async_op=True), wishes
        return found

    def check_same(self, module: nn.Module) -> None:
        """Make sure that all ranks have the same parameters, to the bit."""
        if self.alone:
            return
        whole = [p.detach().reshape(-1).view(torch.int32) for p in module.parameters()]
        sums = torch.stack([bits.sum(dtype=torch.int64) for bits in whole]).cpu()
        for other, theirs in enumerate(self.gather(sums, [len(sums)] * self.count)):
            if not torch.equal(sums, theirs):
                raise UserError(
                    f"rank {other} has other weights than rank {self.rank}: all have to compute alike; give them one "
                    "kind of processor or GPU, the same versions and OMP_NUM_THREADS, then resume"
                )

    # Between steps.

    def first(self, work: Callable[[], T]) -> T:
        """Return what ``work`` gives on rank 0, on all ranks; an error there is an error everywhere."""
        if self.alone:
            return work()
        found: tuple[Any, Any] = (None, None)
        if self.writes:
            try:
                found = work(), None
            except BaseException as error:
                self._say((None, getattr(error, "exit_code", 1)), None)
                raise
        value, code = self._say(found, None)
        if code is not None:
            failed = _EndedElsewhereError()
            failed.exit_code = code
            raise failed
        return value

    def in_turn(self, work: Callable[[], T]) -> T:
        """Return what ``work`` gives on each rank: first on rank 0, then on one of every machine, then on the others.

        So data are prepared once where ranks share a disk, and once on each machine where they don't.
        """
        if self.alone:
            return work()
        mine = 0 if self.writes else 1 if os.environ.get("LOCAL_RANK", "0") == "0" else 2
        for turn in range(3):
            if turn == mine:
                found = work()
            with self._talking(0):
                dist.barrier()
        return found

    def everyone(self, value: int) -> list[int]:
        """Return each rank's value."""
        return [int(each) for each in self.gather(torch.tensor([value]), [1] * self.count)]

    def training(self, device: torch.device, *, exact: bool, seconds: float) -> "Ranks":
        """Return the same ranks with groups for training, where an exchange that takes longer ends the run."""
        if exact and self.count > EXACT_UNITS:
            raise UserError(f"ranks_exact=true: a batch has {EXACT_UNITS} units, too few for {self.count} ranks")
        if exact and device.type == "cpu":
            torch.set_num_threads(1)  # sums inside operators depend on it
        if self.alone:
            return Ranks(exact)
        limit = timedelta(seconds=seconds)
        with self._talking(0):
            host = dist.new_group(backend="gloo", timeout=limit)
            group = dist.new_group(backend="nccl", timeout=limit) if device.type == "cuda" else host
        return Ranks(exact, self.rank, self.count, group, host)

    def folder(self, folder: Path) -> Path:
        """Return where this rank may put what it can't hold: the run's folder, or another one where that is not."""
        return folder if folder.is_dir() else Path(tempfile.gettempdir())

    def close(self) -> None:
        """End: nobody leaves before all have arrived."""
        if not self.alone and dist.is_initialized():
            self.agreed(False)
            with self._talking(0):
                dist.barrier(group=self._host)
            dist.destroy_process_group()

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
    def _talking(self, size: float, *, waits: bool = True) -> Iterator[None]:
        self.traffic.bytes += size
        began = time.perf_counter()
        try:
            yield
        except RuntimeError as error:  # torch's own errors of this kind, and what gloo and NCCL raise
            said = re.sub(r"^(\[[^]]*\] )+|\. This is typically.*", "", str(error).splitlines()[0])
            raise RankLostError(f"another rank has ended or can't be reached ({said})") from error
        finally:
            self.traffic.seconds += (time.perf_counter() - began) * waits


ALONE = Ranks()


def connect() -> Ranks:
    """Return this process's place as torchrun's environment has it; without one, a run of one process."""
    if int(os.environ.get("WORLD_SIZE", 1)) == 1:
        return ALONE
    if not dist.is_initialized():
        store, rank, count = next(dist.rendezvous("env://", timeout=_PATIENCE))
        if os.environ.get("GROUP_WORLD_SIZE", "1") == "1":  # torchrun's one store outlives its restarts
            store = dist.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=count, timeout=_PATIENCE)
    return Ranks(rank=dist.get_rank(), count=dist.get_world_size())


def _in_order(values: Sequence[Tensor]) -> Tensor:
    total = values[0].clone()
    for value in values[1:]:
        total += value
    return total
