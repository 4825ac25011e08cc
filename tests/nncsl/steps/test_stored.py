"""A frozen backbone's features, stored once: steps that read them learn what steps on the views would."""

import signal
from dataclasses import replace

import numpy as np
import pytest
import torch

from nncsl import config, engine, methods
from nncsl.batches import ViewKeys
from nncsl.config import build
from nncsl.featurebank import FeatureBank
from nncsl.interruption import Interruption
from nncsl.planner import imagined, measured_sizes
from nncsl.record.state import RunState
from nncsl.steps import stored
from nncsl.teachers import Surroundings
from tests.nncsl.methods import test_killed
from tests.nncsl.scenes import SecondTask

# Two labels per class where a step shows four of each: images come again within a step, in other views.
FROZEN = ["network.frozen=true", "tasks=2", "labels=2/class", "unlabeled_memory=20", "batchnorm=train"]


@pytest.fixture
def frozen(small):
    return lambda *more: small(*FROZEN, *more)


def surroundings(scene):
    run = scene.run
    return Surroundings(scene.config, "", run.folder, run.device, run.reporter, Interruption(), run.ranks)


def on_pixels(monkeypatch):
    """Let the backbone run in every step, on the views that would have been stored."""
    begin = stored.StoredInputs.begin
    monkeypatch.setattr(stored.StoredInputs, "begin", lambda self, setup, state: begin(self, setup, state) and setup)


@pytest.mark.parametrize("more", [["epochs=1"], ["bank_refresh_epochs=1", "micro_batch=24", "method=csl"]])
def test_steps_learn_what_they_would_on_the_views_themselves(frozen, make_run, monkeypatch, more):
    loaded = frozen("bank_codec=fp32", "warmup_epochs=0", *more)
    method, state = engine.train(make_run(loaded, "stored"))
    on_pixels(monkeypatch)
    other, expected = engine.train(make_run(loaded, "pixels"))
    assert state.accuracy_matrix == expected.accuracy_matrix
    for (name, found), wanted in zip(method.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.allclose(found.double(), wanted.double(), rtol=1e-4, atol=1e-6), name


def test_every_view_is_stored_once_and_no_other_is_ever_asked_for(frozen, make_run, monkeypatch):
    """Also where a class has fewer images than a step shows of it, and for images that are only remembered."""
    computed = []
    compute = stored.StoredInputs._compute

    def counted(self, keys):
        computed.extend(zip([(self._task.index, keys.kind)] * len(keys), keys.ids, keys.slots, strict=True))
        return compute(self, keys)

    monkeypatch.setattr(stored.StoredInputs, "_compute", counted)
    run = make_run(frozen())
    method, state = engine.train(run)
    assert len(set(computed)) == len(computed)
    rows = sum(task == 1 for (task, _), _, _ in computed)
    with FeatureBank.open(run.folder / stored.FOLDER) as bank:
        assert len(bank) == rows and bank.dim == method.network.head.in_features and bank.codec == "fp32"
        assert state.peak_memory["inputs"] == bank.nbytes
    # A plan for a memory budget counts the same.
    sizes = measured_sizes(run.source, run.tasks)
    planned = imagined.inputs(method, sizes, ranks=1)
    assert planned.features == planned.rows * 4 * bank.dim and 0.95 < planned.rows / rows < 1.1
    thawed = methods.build(replace(run.config, network=replace(run.config.network, frozen=False)), 10)
    assert imagined.inputs(thawed, sizes, ranks=1) == (0, 0)


def test_views_that_are_not_stored_are_computed(frozen, make_run):
    scene = SecondTask(frozen(), make_run)
    inputs = stored.open_inputs(scene.method, surroundings(scene))
    setup = inputs.begin(scene.setup, RunState(task=1, memory=scene.state.memory))
    ids = scene.task.unlabeled[:3]
    keys = ViewKeys("large", np.repeat(ids, 2), np.tile([0, 999], 3))
    with torch.no_grad():
        scene.method.eval()
        expected = scene.network.features(scene.setup.render(keys))
    assert torch.allclose(setup.render(keys), expected, atol=1e-6)
    inputs.close()


@pytest.mark.parametrize(
    ("changes", "why"), [({"method": "er"}, "er needs pixels"), ({"teacher_mode": "none"}, ""), ({}, None)]
)
def test_where_they_can_not_be_stored_it_is_said(frozen, make_run, changes, why, capsys):
    loaded = frozen(*(f"{key}={value}" for key, value in changes.items()))
    scene = SecondTask(loaded, make_run)
    found = stored.open_inputs(scene.method, surroundings(scene))
    assert isinstance(found, stored.StoredInputs) == (why is None)
    assert ("computed in every step" in (said := capsys.readouterr().out)) == bool(why) and (why or "") in said


def test_killed_in_each_task_it_ends_the_same(tmp_path):
    settings = (*test_killed.SETTINGS, *FROZEN)
    loaded = config.load("digits", map(build.parse_assignment, settings))
    whole, broken, steps = tmp_path / "whole", tmp_path / "broken", {}
    test_killed.train(loaded, whole, lambda here: steps.setdefault(here[0], []).append(here))
    for places in steps.values():
        child = test_killed.processes.Process(
            target=test_killed.killed_at, args=(places[len(places) // 2], loaded, broken, torch.get_num_threads())
        )
        child.start()
        child.join()
        assert child.exitcode == -signal.SIGKILL
    test_killed.train(loaded, broken, lambda here: None)
    assert test_killed.ended(broken) == test_killed.ended(whole)
