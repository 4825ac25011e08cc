"""Ctrl-C is heard at once, a long step is thrown away, a second Ctrl-C ends; SIGTERM anywhere ends with 130."""

import os
import signal
import subprocess
import sys
import time

import pytest

from nncsl import engine, interruption, passes
from nncsl.featurebank import fingerprint
from nncsl.interruption import Interrupted, Interruption
from nncsl.passes import batchnorm
from nncsl.record import checkpoint

TINY = ["tasks=2", "epochs=1", "warmup_epochs=0", "network.blocks=[1]", "unlabeled_batch=200", "bank_views=1"]


@pytest.mark.parametrize("settings", [("micro_batch=100",), ("micro_batch=100", "method=er"), ("method=ordisco",)])
def test_a_long_step_is_thrown_away_and_taken_again(small, make_run, monkeypatch, settings):
    """Also while BatchNorm trains, whose statistics the thrown-away step has changed; and in any micro-batch."""
    expected, _ = engine.train(make_run(small(*TINY, *settings), "whole"))
    monkeypatch.setattr(interruption, "_PATIENCE", -1.0)
    heeded, run, saved, stopped = [0], make_run(small(*TINY, *settings), "stopped"), None, []

    def asked():
        heeded[0] += Interruption._current is not None
        if heeded[0] in (3, 8, 14, 40):
            heeded[0] += 1
            os.kill(os.getpid(), signal.SIGTERM)
        interruption.heed()

    for module in (passes, batchnorm, engine.evaluation):
        monkeypatch.setattr(module, "heed", asked)
    while True:
        try:
            method, _ = engine.train(run, saved)
            break
        except Interrupted:
            saved = checkpoint.load(run.checkpoint_path)
            stopped.append((saved["state"]["task"], saved["state"]["step"]))
    assert stopped and fingerprint(method.state_dict()) == fingerprint(expected.state_dict())


def test_what_is_not_marked_is_never_thrown_away(monkeypatch):
    monkeypatch.setattr(interruption, "_PATIENCE", -1.0)
    said = []
    with Interruption(said.append) as asked:
        os.kill(os.getpid(), signal.SIGINT)
        interruption.heed()
        with asked.dispensable(lambda: False):
            interruption.heed()
        with pytest.raises(Interrupted), asked.dispensable(lambda: True):
            interruption.heed()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert len(said) == 1 and "stopping" in said[0]
    interruption.heed()


BUSY = """
import sys, time, torch
from nncsl.interruption import Interruption
work = torch.randn(3000, 3000)
with Interruption():
    print("ready", flush=True)
    while True:
        torch.linalg.svd(work)  # minutes without a line of Python
"""


def test_ctrl_c_is_heard_inside_torch_and_the_second_one_ends_there():
    process = subprocess.Popen([sys.executable, "-u", "-c", BUSY], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    assert "stopping" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130


STARTING = """
import os, signal, sys
from nncsl import cli
import nncsl.cli.{module} as command
work = command.{name}
def terminated(arguments):
    os.kill(os.getpid(), signal.SIGTERM)
    return work(arguments)
command.{name} = terminated
sys.exit(cli.main({arguments!r}))
"""


def test_sigterm_outside_the_loop_ends_with_130():
    """While a command starts: of the loop itself test_resume has the cases."""
    code = STARTING.format(module="methods", name="_methods", arguments=["methods"])
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (130, "nncsl: interrupted\n")
