"""Tasks are added to finished runs: what comes of it is, bit for bit, a run that had them from the start."""

import contextlib
import json
import multiprocessing
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

import nncsl
from nncsl import cli, files, methods, runs
from nncsl.data.sources import SOURCES
from nncsl.errors import ConfigError, UserError
from nncsl.record import checkpoint
from nncsl.runs import continuing
from tests.nncsl.runs import grown

CONTINUED = [name for name, method in methods.METHODS.items() if not method.uncontinued(grown=False)]
CASES = [(name,) for name in CONTINUED]
CASES += [("nncsl", "teacher_mode=model"), ("nncsl", "unlabeled_memory=8", "memory_selection=herding")]
CASES += [("nncsl", "class_order=[3,0,2,1]"), ("icarl", "teacher_mode=model"), ("foster", "teacher_mode=model")]
THREE_CHANNELS = ("views.mean=[0.3,0.3,0.3]", "views.std=[0.3,0.3,0.3]")
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["tests.nncsl.runs.test_continuing", "torch._dynamo", "sklearn.datasets"])


@pytest.fixture(autouse=True)
def _known(monkeypatch):
    for name in ("six", "four", "two", "three"):
        monkeypatch.setitem(SOURCES, name, None)  # so that they are gone afterwards
    grown.register_all()


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """A function from a method to its complete run in two tasks of two classes."""
    parent, done = tmp_path_factory.mktemp("finished"), {}

    def train(*settings):
        if settings not in done:
            done[settings] = parent / str(len(done))
            runs.start(grown.loaded("four", 2, *settings), done[settings], quiet=True)
        return done[settings]

    return train


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_it_ends_as_if_the_third_task_had_been_planned(tmp_path, finished, case):
    planned, continued = tmp_path / "planned", tmp_path / "continued"
    whole = [text.replace("[3,0,2,1]", "[3,0,2,1,4,5]") for text in case]
    runs.start(grown.loaded("six", 3, *whole), planned, quiet=True)
    before = grown.weights(finished(*case)), grown.measured(finished(*case))
    runs.extend(finished(*case), [{"dataset": "two"}], continued, quiet=True)
    assert grown.weights(continued) == grown.weights(planned)
    assert grown.measured(continued) == grown.measured(planned)
    assert grown.remembered(continued) == grown.remembered(planned)
    assert (grown.weights(finished(*case)), grown.measured(finished(*case))) == before


@pytest.mark.parametrize("method", sorted(set(methods.METHODS) - set(CONTINUED)))
def test_a_method_that_has_to_know_all_tasks_says_so(tmp_path, finished, method):
    trained = shutil.copytree(finished("er"), tmp_path / "trained")
    text = (trained / "config.yaml").read_text()
    (trained / "config.yaml").write_text(text.replace("method: er\n", f"method: {method}\n"))
    (trained / "SHA256SUMS").unlink()  # a file is changed on purpose
    with pytest.raises(UserError, match=f"can't be continued: {method}"):
        runs.extend(trained, [{"dataset": "two"}], tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_several_tasks_at_once_and_then_another(tmp_path, finished):
    """Their labels and epochs may be other ones; what is not said stays as it was."""
    summary = runs.extend(
        finished("er"), [{"dataset": "two", "tasks": 2, "labels": "2/class,4/class"}], tmp_path / "a", quiet=True
    )
    assert np.array(summary["accuracy_matrix"]).shape == (4, 4) and summary["fwt"] is not None
    with pytest.raises(ConfigError, match="say with --labels"):
        runs.extend(tmp_path / "a", [{"dataset": "three"}], tmp_path / "b")
    summary = runs.extend(
        tmp_path / "a", [{"dataset": "three", "labels": "50%", "epochs": 2}], tmp_path / "b", quiet=True
    )
    assert np.array(summary["accuracy_matrix"]).shape == (5, 5)
    recorded = json.loads((tmp_path / "b" / "tasks.json").read_text())
    assert [task["classes"] for task in recorded["tasks"]] == [[0, 1], [2, 3], [4], [5], [6, 7, 8]]
    assert [len(task["labeled"]) for task in recorded["tasks"]] == [6, 6, 2, 4, 30]
    assert recorded["class_names"] == [f"digit {label}" for label in range(9)]
    lines = [line for line in grown.measured(tmp_path / "b") if line.get("kind") == "epoch"]
    assert [line["task"] for line in lines] == [0, 1, 2, 3, 4, 4]
    evaluated = runs.evaluate(tmp_path / "b")
    assert evaluated["linear"] == summary["accuracy_matrix"][-1] and len(evaluated["nearest_neighbours"]) == 5


@pytest.mark.parametrize("method", ["nncsl", "icarl", "foster", "derpp", "pseudoer"])
def test_a_head_that_is_too_small_grows(tmp_path, finished, method):
    first = finished(method, "head_outputs=5")
    runs.extend(first, [{"dataset": "two"}], tmp_path / "run", quiet=True)
    saved = checkpoint.load(tmp_path / "run" / "checkpoint" / "state.pt")
    assert len(saved["method"]["network.head.weight"]) == saved["config"]["head_outputs"] == 10
    model = nncsl.load(tmp_path / "run", device="cpu")
    assert model.classes == tuple(f"digit {label}" for label in range(6))
    assert len(model.predict(grown.pixels_of(5), by="neighbors")) == len(model.predict(grown.pixels_of(5)))


def test_what_a_small_head_knew_stays(finished, tmp_path):
    first = finished("nncsl", "head_outputs=5")
    folder = continuing.prepare(continuing.Finished.read(first), [{"dataset": "two"}], tmp_path / "run", None)
    known, grown_to = (checkpoint.load(f / "checkpoint" / "state.pt")["method"] for f in (first, folder))
    for name in ("network.head.weight", "network.head.bias"):
        assert torch.equal(grown_to[name][:5], known[name]) and grown_to[name][5:].abs().sum() > 0


def test_runs_without_room_for_later_classes_stay_readable(finished, tmp_path):
    """Those of earlier versions: as many outputs as classes, and no setting that says so."""
    older = shutil.copytree(finished("er", "head_outputs=4"), tmp_path / "older")
    text = (older / "config.yaml").read_text()
    (older / "config.yaml").write_text(text.replace("head_outputs: 4\n", ""))
    (older / "SHA256SUMS").unlink()  # older versions have none
    assert text.count("head_outputs: 4\n") == 1
    assert len(nncsl.load(older, device="cpu").predict(grown.pixels_of(1)).classes) == 4
    assert runs.evaluate(older)["linear"] == runs.evaluate(finished("er", "head_outputs=4"))["linear"]
    with pytest.raises(ConfigError, match="head_outputs=3: expected 4 or more"):
        finished("er", "head_outputs=3")


def test_a_method_whose_head_can_not_grow_says_so(tmp_path, finished):
    with pytest.raises(UserError, match="head_outputs=6 or more"):
        runs.extend(finished("oewc", "head_outputs=5"), [{"dataset": "two"}], tmp_path / "run")


def test_wrong_uses_are_refused_before_anything_is_made(tmp_path, finished):
    first = finished("er")

    def refused(match, *overrides, run=first, kind=UserError):
        with pytest.raises(kind, match=match):
            runs.extend(run, [{"dataset": "two"}, *overrides], tmp_path / "run", quiet=True)
        assert not (tmp_path / "run").exists()

    refused("no new classes: the run knows digit 0, ", {"dataset": "four"})
    refused("method can't change .* trained with 'er'", {"method": "nncsl"})
    refused("network.width can't change .* trained with 8", {"network": {"width": 16}})
    refused("seed can't change", {"seed": 1})
    refused("two has 2 classes, and every task needs one", {"tasks": 3})
    refused("tasks=1,2: that is 3 classes, but two has 2", {"tasks": "1,2"})
    refused("one for each of 2 new tasks", {"tasks": 2, "labels": "1/class,2/class,3/class"})
    refused("memory=3: smaller than one image for each of the 4 classes", {"memory": 3})
    half = shutil.copytree(first, tmp_path / "half", ignore=shutil.ignore_patterns("summary.json"))
    refused(f"is not finished: nncsl train --resume {half}", run=half)
    older = shutil.copytree(first, tmp_path / "older")
    facts = json.loads((older / "tasks.json").read_text())
    del facts["train_images"]
    (older / "tasks.json").write_text(json.dumps(facts))
    (older / "SHA256SUMS").unlink()  # older versions have none
    refused("older nncsl", run=older)
    refused("is not a run", run=tmp_path)
    with pytest.raises(ConfigError, match="not empty"):
        runs.extend(first, [{"dataset": "two"}], half)


def killed_at(name, turn, first, folder):
    """The child's part: die when a file of such a name is about to be written for the ``turn``-th time."""
    torch.set_num_threads(1)
    grown.register_all()
    written, beside = [], files.written_beside

    def observed(target, **more):
        written.append(target.name)
        if sum(name in each for each in written) == turn:
            os.kill(os.getpid(), signal.SIGKILL)
        return beside(target, **more)

    files.written_beside = observed
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        go_on(first, folder)


def go_on(first, folder):
    if (folder / "checkpoint" / "state.pt").exists():
        runs.resume(folder, [], quiet=True)
    else:
        runs.extend(first, [{"dataset": "two"}], folder, quiet=True)


def test_killed_again_and_again_it_ends_the_same(tmp_path, finished):
    """While its folder is made, before and after its steps, when the memory changes, at its very end."""
    first, whole, broken = finished("nncsl"), tmp_path / "whole", tmp_path / "broken"
    go_on(first, whole)
    places = [
        ("task-2.npz", 1),
        ("state.pt", 2),
        ("state.pt", 2),
        ("-images-", 1),
        ("state.pt", 2),
        ("summary.json", 1),
    ]
    for place in places:
        child = processes.Process(target=killed_at, args=(*place, first, broken))
        child.start()
        child.join()
        assert child.exitcode == -signal.SIGKILL, place
    go_on(first, broken)
    assert grown.weights(broken) == grown.weights(whole) and grown.measured(broken) == grown.measured(whole)
    assert grown.remembered(broken) == grown.remembered(whole)


def test_as_people_type_it_when_old_images_are_gone(tmp_path, monkeypatch, capsys):
    """Folders of images: the first ones are deleted, then classes come twice, the second time in a grown folder."""
    monkeypatch.chdir(tmp_path)
    for name, labels in {"planned": range(8), "first": range(4), "new": (4, 5), "everything": range(8)}.items():
        grown.write_folder(tmp_path / name, labels)
    settings = [f"--set={text}" for text in (*grown.QUICK, "cache_dir=cache", *THREE_CHANNELS)]

    def train(*words):
        assert cli.main(["train", "--quiet", *words]) == 0

    train(
        "--preset", "digits", "--dataset", "folder:planned", "--tasks", "4", "--out", "whole", "--no-report", *settings
    )
    train(
        "--preset",
        "digits",
        "--dataset",
        "folder:first",
        "--tasks",
        "2",
        "--out",
        "runs/first",
        "--no-report",
        *settings,
    )
    shutil.rmtree("first")
    shutil.rmtree("cache")
    train("--continue", "runs/first", "--dataset", "folder:new")
    summary = json.loads(Path("runs/first-continued/summary.json").read_text())
    assert summary["accuracy_matrix"][-1][:2] == [None, None] and summary["accuracy_matrix"][-1][2] is not None
    assert summary["average_accuracy"] is None and summary["seen_accuracy"][-1] is None
    assert "tasks 1, 2 are gone" in summary["unmeasured"]
    assert "test images of an earlier task were gone" in Path("runs/first-continued/report.html").read_text()
    assert cli.main(["report", "runs/first", "runs/first-continued", "-o", "both.html"]) == 0
    assert cli.main(["metrics", "runs/first-continued", "--out", "curves.csv"]) == 0
    assert cli.main(["eval", "runs/first-continued"]) == 0
    assert cli.main(["bank", "query", "runs/first-continued", "80", "--out", "neighbors.png"]) == 0

    shutil.rmtree("new")
    train("--continue", "runs/first-continued", "--dataset", "folder:everything", "--out", "runs/eight", "--no-report")
    assert grown.weights(Path("runs/eight")) == grown.weights(Path("whole"))
    assert (
        grown.measured(Path("runs/eight"))[-1]["accuracy_matrix"][-1]
        == grown.measured(Path("whole"))[-1]["accuracy_matrix"][-1]
    )
    assert cli.main(["predict", "runs/eight", "everything/digit 7", "--by", "neighbors", "--sheet", "sheet.png"]) == 0
    assert cli.main(["export", "runs/eight", "--to", "model.pt2"]) == 0
    assert cli.main(["train", "--resume", "runs/eight"]) == 0  # complete, and says so
    assert "runs/eight is complete" in capsys.readouterr().out


def test_continue_goes_with_neither_preset_nor_resume(capsys):
    for other in ("--preset", "--resume"):
        assert cli.main(["train", "--continue", "runs/x", other, "digits"]) == 2
        assert f"--continue and {other} exclude each other" in capsys.readouterr().err
