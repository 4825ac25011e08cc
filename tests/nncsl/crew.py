"""Processes that play a run's ranks, started once for many tests: they wait for work and are quick to get it."""

import multiprocessing
import os
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from nncsl.distributed import Ranks

# Children of a process that has imported everything and computed nothing.
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(
    ["tests.nncsl.crew", "tests.nncsl.rank_work", "torch._dynamo", "sklearn.datasets", "nncsl.runs"]
)


PATIENCE = timedelta(seconds=40)  # then a rank that waits for one that failed gives up


class Crew:
    """``size`` processes in one group, and groups of the first 2, 3, ... of them."""

    def __init__(self, size, folder):
        self._members = []
        for rank in range(size):
            mine, theirs = processes.Pipe()
            process = processes.Process(target=_member, args=(rank, size, folder / "meeting", theirs), daemon=True)
            process.start()
            self._members.append((process, mine))

    def run(self, work, *arguments, count, exact=False):
        """What ``work(ranks, *arguments)`` returns on each of the first ``count`` members."""
        for _, pipe in self._members[:count]:
            pipe.send((work, arguments, count, exact))
        answers = [pipe.recv() for _, pipe in self._members[:count]]
        failures = [answer for answer in answers if isinstance(answer, str)]
        assert not failures, "\n".join(sorted(failures, key=lambda text: "RankLostError" in text))
        return [answer[0] for answer in answers]

    def dismiss(self):
        for process, pipe in self._members:
            pipe.send(None)
            process.join()


_groups = {}


def first_of(ranks, count):
    """The first ``count`` of the ranks, as one of them sees it."""
    return Ranks(ranks.exact) if count == 1 else Ranks(ranks.exact, ranks.rank, count, _groups[count])


def _member(rank, size, meeting, pipe):
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)
    _groups.update({count: dist.new_group(list(range(count)), PATIENCE) for count in range(2, size + 1)})
    while (asked := pipe.recv()) is not None:
        work, arguments, count, exact = asked
        try:
            ranks = Ranks(exact) if count == 1 else Ranks(exact, rank, count, _groups[count])
            pipe.send((work(ranks, *arguments),))
        except BaseException:
            pipe.send(f"rank {rank}: {traceback.format_exc()}")
    dist.destroy_process_group()


def own_folder(folder, ranks, name):
    """A new folder for each rank."""
    made = Path(folder) / f"{name}-{ranks.count}-{ranks.rank}"
    made.mkdir()
    return made
