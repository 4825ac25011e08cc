"""Ranks: the processes that share a run, and everything that they say to each other.

A pass over a batch is cut into units, and unit u belongs to rank u mod N. By default there are as many units as ranks;
with ``exact`` there are always ``EXACT_UNITS`` of them, whose sums are taken in their order, so that the number of
ranks does not show in a single bit. Everything else (losses, memory, optimizer) is computed by all ranks alike.
"""

import os
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nncsl import passes
from nncsl.batches import Batch, Render
from nncsl.errors import UserError
from nncsl.exchange import Exchange, noticing_the_lost
from nncsl.networks import Network
from nncsl.passes import Forward, Passes

EXACT_UNITS = 8
_PATIENCE = timedelta(hours=6)  # while one rank prepares data or plans; a rank that dies is noticed at once

T = TypeVar("T")


class _EndedElsewhereError(UserError):
    """What rank 0 has said already; this rank ends in silence, with the same exit code."""


class Ranks(Exchange):
    """This process's place among ``count`` that share a run. Made without arguments: a run of one process."""

    def __init__(self, exact: bool = False, rank: int = 0, count: int = 1, group: Any = None, host: Any = None) -> None:
        super().__init__(rank, count, EXACT_UNITS if exact else count, group, host)
        self.exact = exact
        self._asked: tuple[Any, Tensor] | None = None
        self._gradients: Any = None

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

    # Agreements.

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
                with suppress(UserError):  # who has gone already need not hear of it
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
            with self._talking(0), _stopping_at_once():
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


ALONE = Ranks()


def connect() -> Ranks:
    """Return this process's place as torchrun's environment has it; without one, a run of one process."""
    if int(os.environ.get("WORLD_SIZE", 1)) == 1:
        return ALONE
    if not dist.is_initialized():
        with noticing_the_lost(), _stopping_at_once():
            store, rank, count = next(dist.rendezvous("env://", timeout=_PATIENCE))
            if os.environ.get("GROUP_WORLD_SIZE", "1") == "1":  # torchrun's one store outlives its restarts
                store = dist.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=count, timeout=_PATIENCE)
    return Ranks(rank=dist.get_rank(), count=dist.get_world_size())


@contextmanager
def _stopping_at_once() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the process inside the block, where torch waits for others and Python is not asked.

    A thread hears of the signal. Nothing is being written there: whoever waits has done its part, or has yet to begin.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard, wake = socket.socketpair()
    wake.setblocking(False)

    def listen() -> None:
        while found := heard.recv(1):
            if found[0] in (signal.SIGINT, signal.SIGTERM):
                os.write(2, b"nncsl: interrupted\n")
                os._exit(130)

    listener = threading.Thread(target=listen, name="nncsl-waiting", daemon=True)
    listener.start()
    before = signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        wake.close()
        listener.join()
        heard.close()
