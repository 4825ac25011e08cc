"""A run survives everything: kill -9 at any moment, Ctrl-C, SIGTERM; and ends as if nothing had happened."""

import json
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml
from PIL import Image

from nncsl import config, engine, runs
from nncsl.errors import ConfigError
from nncsl.featurebank import fingerprint
from nncsl.interruption import Interrupted
from nncsl.methods.nncsl import NNCSL
from nncsl.record import checkpoint
from nncsl.record.checkpoint import CheckpointError

SMALL = ["epochs=3", "network.width=8", "network.hidden=16", "bank_views=2"]
TIMES = {"seconds", "images_per_second", "peak_memory"}


def command(folder, *assignments):
    settings = [part for a in (*SMALL, *assignments) for part in ("--set", a)]
    return [sys.executable, "-m", "nncsl", "train", "--quiet", "--no-report", "--out", str(folder), *settings]


def resume(folder):
    return [sys.executable, "-m", "nncsl", "train", "--quiet", "--no-report", "--resume", str(folder)]


def metrics(folder):
    """Everything that is measured, without times and memory."""
    summary = json.loads((folder / "summary.json").read_text())
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    kept = [{k: v for k, v in line.items() if k not in TIMES} for line in lines]
    return {k: v for k, v in summary.items() if k not in TIMES}, kept


def kept(folder, name):
    """What a run keeps beside its checkpoint: of the test set in snapshots, of earlier tasks in memory."""
    found = {path.name: path.read_bytes() for path in (folder / name).iterdir()}
    assert found
    return found


@pytest.fixture(scope="module")
def environment():
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def wait_for_a_moment(process, folder, moments, startup, *, early):
    """Some time in the first seconds, or a moment after the next line of the record: in a step, a save, a sweep."""

    def lines():
        path = folder / "metrics.jsonl"
        return path.read_text().count("\n") if path.exists() else 0

    before = lines()
    # At the latest after the next line: on a machine that has just become faster the run would end before its kills.
    latest = time.monotonic() + (moments.uniform(0.2, 1.2) * startup if early else float("inf"))
    while process.poll() is None and lines() <= before and time.monotonic() < latest:
        time.sleep(0.005)
    if not early:
        time.sleep(moments.uniform(0, 0.3))


@pytest.mark.parametrize(
    ("kills", "assignments"),
    [
        (5, ["epochs=4"]),
        (2, ["teacher_mode=model", "tasks=2"]),
        (2, ["bank_refresh_epochs=1", "tasks=2"]),
        (2, ["bank_order=turns", "labeled_per_class=3", "tasks=2"]),
    ],
)
def test_killed_again_and_again_it_ends_bit_for_bit_the_same(tmp_path, environment, kills, assignments):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    began = time.monotonic()
    process = subprocess.Popen(command(whole, *assignments), env=environment, stdout=subprocess.DEVNULL)
    while not (whole / "checkpoint" / "state.pt").exists():
        assert process.poll() is None
        time.sleep(0.02)
    startup = time.monotonic() - began
    assert process.wait() == 0

    moments, killed = random.Random(0), 0
    while not (broken / "summary.json").exists():
        saved = (broken / "checkpoint" / "state.pt").exists()  # if not, resuming would say so
        arguments = resume(broken) if saved else command(broken, *assignments)
        process = subprocess.Popen(arguments, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        if killed < kills:
            wait_for_a_moment(process, broken, moments, startup, early=killed % 3 == 0)
            process.kill()
        _, error = process.communicate()
        assert process.returncode in (0, -signal.SIGKILL), error.decode()
        killed += process.returncode != 0
    assert killed == kills
    assert metrics(broken) == metrics(whole)
    assert kept(broken, "snapshots") == kept(whole, "snapshots")
    assert kept(broken, "memory") == kept(whole, "memory")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_asked_to_stop_it_saves_the_very_step_and_goes_on_from_there(tmp_path, environment, number):
    folder = tmp_path / "run"
    process = subprocess.Popen(
        command(folder, "epochs=40"), env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    while not (folder / "metrics.jsonl").exists() or not (folder / "metrics.jsonl").read_text():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"continue with: nncsl train --resume {folder}" in error.decode()
    state = torch.load(folder / "checkpoint" / "state.pt", weights_only=True)["state"]
    assert state["epoch"] >= 1 and state["task"] == 0
    resumed = subprocess.Popen(
        resume(folder), env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert "(resumed)" in resumed.stdout.readline()
    resumed.kill()
    resumed.communicate()


@pytest.mark.parametrize("at", [3, 8, 9])
def test_a_signal_in_any_step_of_an_epoch_leaves_a_run_that_ends_the_same(small, make_run, monkeypatch, at):
    """The eighth step is the last one of an epoch, where an epoch's record and the stop meet."""
    expected, _ = engine.train(make_run(small("tasks=2", "unlabeled_batch=80"), "whole"))
    prepared = make_run(small("tasks=2", "unlabeled_batch=80"), "stopped")
    losses, calls = NNCSL.losses, []

    def interrupted(self, *arguments):
        calls.append(1)
        if len(calls) == at:
            os.kill(os.getpid(), signal.SIGTERM)
        return losses(self, *arguments)

    monkeypatch.setattr(NNCSL, "losses", interrupted)
    with pytest.raises(Interrupted):
        engine.train(prepared)
    assert len(calls) == at
    method, _ = engine.train(prepared, checkpoint.load(prepared.checkpoint_path))
    assert fingerprint(method.state_dict()) == fingerprint(expected.state_dict())
    lines = [(prepared.folder.parent / name / "metrics.jsonl").read_text().count("\n") for name in ("whole", "stopped")]
    assert lines == [6, 6]


def test_a_run_can_be_resumed_from_elsewhere(tmp_path, monkeypatch):
    """Relative paths are made absolute when a run starts; where data lies may be said anew."""
    from nncsl.data.sources import SourceOptions, open_source

    source = open_source("digits", SourceOptions())
    for i in range(60):
        folder = tmp_path / "images" / str(source.train_labels[i] % 2)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(source.train.array[i].repeat(3, axis=2)).resize((32, 32)).save(folder / f"{i}.png")
    monkeypatch.chdir(tmp_path)
    settings = {
        "dataset": "folder:images",
        "tasks": 2,
        "labels": "2/class",
        "memory": 4,
        "epochs": 1,
        "cache_dir": "cache",
    }
    settings |= {"network": {"width": 8, "blocks": [1], "hidden": 16}, "unlabeled_batch": 8}
    runs.start(config.load("cifar10", [settings]), Path("run"), quiet=True)
    (tmp_path / "run" / "summary.json").unlink()
    monkeypatch.chdir("/")
    assert runs.resume(tmp_path / "run", [{"device": "cpu"}], quiet=True)["average_accuracy"] >= 0


def test_resume_refuses_what_does_not_fit(tmp_path, environment):
    folder = tmp_path / "run"
    with pytest.raises(ConfigError, match="is not a run"):
        runs.resume(folder, [])
    loaded = config.load("digits", [{"epochs": 1, "tasks": 2, "bank_views": 2}])
    runs.start(loaded, folder, quiet=True)
    assert runs.resume(folder, []) == json.loads((folder / "summary.json").read_text())
    with pytest.raises(ConfigError, match=r"tau is 0\.1 there, 0\.2 was asked for"):
        runs.resume(folder, [{"tau": 0.2}])
    (folder / "summary.json").unlink()
    written = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(written.replace("tau: 0.1", "tau: 0.3"))
    with pytest.raises(ConfigError, match=r"tau is 0\.1 there, 0\.3 was asked for"):
        runs.resume(folder, [])
    (folder / "config.yaml").write_text(written)
    path = folder / "checkpoint" / "state.pt"
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError, match=r"state.pt is damaged"):
        runs.resume(folder, [])
    path.unlink()
    with pytest.raises(CheckpointError, match="nothing was saved yet"):
        runs.resume(folder, [])


def test_a_checkpoint_can_not_execute_code(tmp_path):
    class Attack:
        def __reduce__(self):
            return (open, (str(tmp_path / "owned"), "w"))

    folder = tmp_path / "run"
    (folder / "checkpoint").mkdir(parents=True)
    (folder / "config.yaml").write_text(config.dump(config.load("digits")))
    torch.save({"format": 1, "state": Attack()}, folder / "checkpoint" / "state.pt", pickle_module=pickle)
    with pytest.raises(CheckpointError):
        runs.resume(folder, [])
    assert not (tmp_path / "owned").exists()


def test_the_run_records_its_configuration_and_split(tmp_path):
    folder = tmp_path / "run"
    loaded = config.load("digits", [{"epochs": 1, "tasks": 1}])
    runs.start(loaded, folder, quiet=True)
    assert yaml.safe_load((folder / "config.yaml").read_text())["tasks"] == 1
    split = json.loads((folder / "tasks.json").read_text())
    assert len(split["tasks"][0]["labeled"]) == 40 and split["dataset"] == "digits"


@pytest.fixture
def tiny_disk(tmp_path):
    """A real file system of 300 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a small file system needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_ends_a_run_with_one_line_and_the_last_checkpoint(tiny_disk, environment):
    folder = tiny_disk / "run"
    ended = subprocess.run(command(folder), env=environment, capture_output=True, text=True)
    assert ended.returncode == 2, ended.stderr
    assert "No space left" in ended.stderr and "free" in ended.stderr and len(ended.stderr.splitlines()) == 1
    assert "state" in torch.load(folder / "checkpoint" / "state.pt", weights_only=True)
    assert not list(folder.rglob("*.new*"))
