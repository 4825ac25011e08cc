"""Steps that are prepared ahead: the same run, bit for bit, its errors and its end."""

import os
import signal
import threading

import pytest
import torch

from nncsl import engine, methods
from nncsl.featurebank import fingerprint
from nncsl.interruption import Interrupted
from nncsl.record import checkpoint
from nncsl.steps import ahead, arrival
from nncsl.steps.ahead import Ahead

SHORT = ("epochs=1", "tasks=2", "unlabeled_batch=160", "network.blocks=[1]", "unlabeled_fraction=0.5")


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("nncsl-ahead")]


@pytest.mark.parametrize("settings", [
    ("method=nncsl",), ("method=nncsl", "teacher_mode=model"), ("method=lwf", "teacher_mode=model"), ("method=xder",),
    ("method=pseudoer",),
], ids=" ".join)  # fmt: skip
def test_the_same_run_whether_stopped_or_not(small, make_run, monkeypatch, settings):
    expected, _ = engine.train(make_run(small(*SHORT, *settings, "prefetch=off"), "plain"))
    whole, _ = engine.train(make_run(small(*SHORT, *settings, "prefetch=on"), "ahead"))
    assert fingerprint(whole.state_dict()) == fingerprint(expected.state_dict())
    stopped = make_run(small(*SHORT, *settings, "prefetch=on"), "stopped")
    declared, calls = methods.find(stopped.config.method), []
    losses = declared.losses

    def interrupted(self, step):
        calls.append(step.now.number)
        if len(calls) in (1, 4):
            os.kill(os.getpid(), signal.SIGTERM)
        return losses(self, step)

    monkeypatch.setattr(declared, "losses", interrupted)
    saved = None
    for _ in range(2):
        with pytest.raises(Interrupted):
            engine.train(stopped, saved)
        assert not threads()
        saved = checkpoint.load(stopped.checkpoint_path)
    resumed, _ = engine.train(stopped, saved)
    assert fingerprint(resumed.state_dict()) == fingerprint(expected.state_dict()) and not threads()


def test_an_error_while_preparing_is_the_runs_error(small, make_run, monkeypatch):
    prepare, where = arrival.prepare, []

    def failing(method, setup, teacher, now, *, whole):
        where.append(threading.current_thread().name)
        if now.number == 1:
            raise OSError("the disk is gone")
        return prepare(method, setup, teacher, now, whole=whole)

    monkeypatch.setattr(arrival, "prepare", failing)
    run = make_run(small(*SHORT, "prefetch=on"))
    with pytest.raises(OSError, match="the disk is gone"):
        engine.train(run)
    assert all(name.startswith("nncsl-ahead") for name in where) and not threads()
    assert checkpoint.load(run.checkpoint_path)["state"]["step"] == 0


def test_one_ahead_and_never_two():
    made, used = [], []

    def slow(item):
        made.append(item)
        return item

    with Ahead(on=True) as one:
        for item in one.each(slow, range(5)):
            used.append(item)
            one.settle()
            assert made == list(range(min(item + 2, 5)))
    assert used == made == list(range(5)) and not threads()


def test_the_next_is_prepared_meanwhile():
    begun = [threading.Event() for _ in range(4)]

    def note(item):
        begun[item].set()
        return item

    with Ahead(on=True) as one:
        for item in one.each(note, range(4)):
            assert all(event.wait(timeout=30) for event in begun[: item + 2])  # the next one's too


def test_what_is_not_pure_is_not_prepared_ahead():
    names = []
    with Ahead(on=True) as one:
        list(one.each(lambda _: names.append(threading.current_thread().name), range(3), pure=False))
    assert set(names) == {threading.current_thread().name}


def test_on_a_cpu_only_when_asked(small):
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert not ahead.chosen(small(), cpu) and ahead.chosen(small("prefetch=on"), cpu)
    assert ahead.chosen(small(), cuda) == (os.cpu_count() > 1) and not ahead.chosen(small("prefetch=off"), cuda)
