"""kill -9 inside every phase of every method and, where it asks the old network, with each kind of teacher."""

import contextlib
import json
import multiprocessing
import os
import signal
from pathlib import Path

import pytest
import torch

from nncsl import config, methods, runs
from nncsl.config import build
from tests.nncsl.scenes import SecondTask

SETTINGS = ("tasks=2", "epochs=2", "network.width=8", "network.hidden=16", "bank_views=2", "unlabeled_batch=160")
TIMES = {"seconds", "images_per_second", "peak_memory"}
# Children of a process that has imported everything and computed nothing: quick to start, and safe whatever threads
# this one has.
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["tests.nncsl.methods.test_killed", "torch._dynamo", "sklearn.datasets"])


def quick(method, mode):
    """A short run of two tasks; a method that counts its own epochs has few of them."""
    own = ("own.epochs=4",) if hasattr(methods.find(method).Settings, "epochs") else ()
    return config.load(
        "digits", map(build.parse_assignment, (*SETTINGS, *own, f"method={method}", f"teacher_mode={mode}"))
    )


def train(loaded, folder, before_losses):
    """Start or resume a run; ``before_losses`` hears where each step is."""
    declared = methods.find(loaded.method)
    losses = declared.losses

    def observed(self, step):
        before_losses((step.task.index, step.phase.name, step.now.number))
        return losses(self, step)

    own = "losses" in vars(declared)
    declared.losses = observed
    try:
        if (folder / "checkpoint" / "state.pt").exists():
            runs.resume(folder, [], quiet=True)
        else:
            runs.start(loaded, folder, quiet=True)
    finally:
        if own:
            declared.losses = losses
        else:
            del declared.losses


def killed_at(place, loaded, folder, threads):
    """The child's part: train up to a step and die there."""
    torch.set_num_threads(threads)
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        train(loaded, folder, lambda here: here == place and os.kill(os.getpid(), signal.SIGKILL))


def ended(folder):
    """Everything that was learned and measured: tensors, losses and accuracies, without times."""
    saved = torch.load(folder / "checkpoint" / "state.pt", weights_only=True)["method"]
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    kept = [
        {k: v for k, v in line.items() if k not in TIMES}
        for line in (*lines, json.loads((folder / "summary.json").read_text()))
    ]
    return {name: value.numpy().tobytes() for name, value in saved.items()}, kept


@pytest.mark.parametrize("mode", ["features", "model"])
@pytest.mark.parametrize("method", list(methods.METHODS))
def test_killed_in_each_phase_it_ends_the_same(tmp_path, make_run, method, mode):
    loaded = quick(method, mode)
    if mode == "model" and (methods.find(method).one_task or not SecondTask(loaded, make_run).all_asks()):
        pytest.skip("asks the old network nothing: the same run as with a bank")
    whole, broken, steps = tmp_path / "whole", tmp_path / "broken", {}
    train(loaded, whole, lambda here: steps.setdefault(here[:2], []).append(here))
    for places in steps.values():
        place = places[len(places) // 2]
        child = processes.Process(target=killed_at, args=(place, loaded, broken, torch.get_num_threads()))
        child.start()
        child.join()
        assert child.exitcode == -signal.SIGKILL, f"{place} was not reached"
    train(loaded, broken, lambda here: None)
    assert ended(broken) == ended(whole)
