"""Whole small runs on digits: what they write, what they refuse, and that evaluation changes nothing."""

import json

import numpy as np
import pytest
import torch

from nncsl import engine, evaluation, methods, networks, optim, runs
from nncsl.engine import DivergenceError
from nncsl.errors import ConfigError
from nncsl.featurebank import fingerprint
from nncsl.steps import divergence
from tests.nncsl.scenes import SecondTask


@pytest.mark.parametrize("assignments", [
    ["teacher_mode=model"],
    ["teacher_mode=none"],
    ["distillation=kd"],
    ["distillation=feature", "teacher_mode=model"],
    ["memory_selection=herding", "memory=10"],
    ["unlabeled_memory=40"],
    ["memory=0"],
    ["memory=0", "distillation=kd"],
    ["distillation=kd", "precision=bf16"],
    ["network.width=4"],
    ["memory=8"],
    ["batchnorm=train"],
    ["precision=bf16"],
    ["bank_codec=int8", "bank_residency=disk"],
    ["bank_codec=int4", "bank_residency=disk"],
    ["optimizer=lars", "lr_peak=0.4"],
    ["class_order=[9,8,7,6,5,4,3,2,1,0]", "unlabeled_fraction=0.5"],
])  # fmt: skip
def test_every_switch_trains(small, make_run, assignments):
    prepared = make_run(small("epochs=1", *assignments))
    _, state = engine.train(prepared)
    assert len(state.accuracy_matrix) == 5
    size = prepared.config.memory
    assert len(state.memory.ids) == min(size, 40)
    assert len(state.memory.unlabeled) == prepared.config.unlabeled_memory
    lines = [json.loads(line) for line in (prepared.folder / "metrics.jsonl").read_text().splitlines()]
    assert ("nnd" in lines[-2]) == (assignments not in (["memory=0"], ["teacher_mode=none"]))
    if assignments == ["memory=0"]:
        # Nothing of an old task is left: after the last one only its own two classes are known to the head's training.
        assert state.memory.ids.size == 0 and max(state.accuracy_matrix[-1][:3]) < 60


def test_evaluation_changes_no_state(small, make_run):
    prepared = make_run(small())
    method = methods.build(prepared.config, prepared.source.num_classes)
    networks.set_training(method, freeze_batchnorm=False)
    before, random_state = fingerprint(method.state_dict()), torch.get_rng_state()
    first = evaluation.test_scores(method, prepared.source, prepared.config.views, torch.device("cpu"))[0]
    again = evaluation.test_scores(method, prepared.source, prepared.config.views, torch.device("cpu"))[0]
    assert fingerprint(method.state_dict()) == before and torch.equal(first, again)
    assert all(module.training for module in method.modules())
    assert torch.equal(torch.get_rng_state(), random_state)


def test_recalibration_happens_once_before_statistics_are_frozen(small, make_run):
    """Other statistics than without it, the same after every later task, and those of training images alone."""
    plain, _ = engine.train(make_run(small("epochs=1", "tasks=2"), "plain"))
    seen = []
    for name in ("one", "again"):
        prepared = make_run(small("epochs=1", "tasks=2", "batchnorm_recalibrate=true"), name)
        if name == "again":
            prepared.source.test.array[:] = 255 - prepared.source.test.array
        method, _ = engine.train(prepared)
        seen.append(method.network.stem[1].running_mean)
    assert not torch.equal(seen[0], plain.network.stem[1].running_mean)
    assert torch.equal(*seen)


def test_training_never_touches_the_test_set(small, make_run):
    """Other test images give other accuracies and bit for bit the same network."""
    changed = make_run(small("epochs=1", "tasks=2"), "changed")
    changed.source.test.array[:] = 255 - changed.source.test.array
    fingerprints = []
    for prepared in (changed, make_run(small("epochs=1", "tasks=2"), "plain")):
        network, state = engine.train(prepared)
        fingerprints.append((fingerprint(network.state_dict()), state.accuracy_matrix))
    assert fingerprints[0][0] == fingerprints[1][0]
    assert fingerprints[0][1] != fingerprints[1][1]


def test_hidden_labels_do_not_reach_training(small, make_run):
    """Wrong labels on every unlabeled image: the curve changes, the network does not."""
    plain = make_run(small("epochs=1", "tasks=2"), "plain")
    poisoned = make_run(small("epochs=1", "tasks=2"), "poisoned")
    labels = poisoned.source.train_labels
    hidden = np.setdiff1d(np.arange(len(labels)), np.concatenate([task.labeled for task in poisoned.tasks]))
    labels[hidden] = (labels[hidden] + 3) % 10
    networks_after = [fingerprint(engine.train(prepared)[0].state_dict()) for prepared in (plain, poisoned)]
    assert networks_after[0] == networks_after[1]
    curves = [(p.folder / "metrics.jsonl").read_text().splitlines()[0] for p in (plain, poisoned)]
    accuracies = [json.loads(line)["unlabeled_accuracy"] for line in curves]
    assert accuracies[0] != accuracies[1]


def test_divergence_stops_with_the_last_good_checkpoint(small, make_run):
    prepared = make_run(small("lr_peak=1e9", "lr_start=1e9", "epochs=2"))
    with pytest.raises(DivergenceError, match=r"task 1, epoch 1 .*snn.*lower --set lr_peak"):
        engine.train(prepared)
    saved = torch.load(prepared.checkpoint_path, weights_only=True)
    assert all(value.isfinite().all() for value in saved["method"].values())


def test_eval_gives_the_runs_own_accuracies_and_a_second_opinion(small, tmp_path):
    summary = runs.start(small("epochs=1"), tmp_path / "run", quiet=True)
    result = runs.evaluate(tmp_path / "run")
    assert result["linear"] == summary["accuracy_matrix"][-1]
    assert len(result["nearest_neighbours"]) == 5 and all(0 <= v <= 100 for v in result["nearest_neighbours"])


def test_folders_that_hold_something_are_left_alone(small, tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match="not empty"):
        runs.start(small(), tmp_path)
    ended_early = tmp_path / "early"
    ended_early.mkdir()
    (ended_early / "config.yaml").write_text("")  # killed before its first checkpoint: nothing to lose
    runs.start(small("epochs=1", "tasks=1"), ended_early, quiet=True)
    with pytest.raises(ConfigError, match=r"not empty: continue it with --resume"):
        runs.start(small(), ended_early)
    with pytest.raises(ConfigError, match="can't be created"):
        runs.start(small(), tmp_path / "thesis.txt" / "below")


def test_unknown_method_and_device(small, tmp_path):
    with pytest.raises(ConfigError, match=r"method='nncls'.*nncsl, nncsl-plus, csl"):
        runs.start(small("method=nncls"), tmp_path / "run")
    with pytest.raises(ConfigError, match="device='tpu'"):
        runs.find_device("tpu")


def test_a_network_that_breaks_is_not_saved(small, make_run, monkeypatch):
    """NaN from the very last update would otherwise replace the good checkpoint, or end as a success."""
    prepared = make_run(small("tasks=1", "epochs=1"))
    step = optim.Lars.step

    def breaking(self, closure=None):
        step(self)
        self.param_groups[0]["params"][0].data.view(-1)[0] = float("nan")

    monkeypatch.setattr(optim.Lars, "step", breaking)
    monkeypatch.setattr(divergence.Lookout, "note", lambda *arguments: None)
    with pytest.raises(DivergenceError, match="weights are not finite in task 1"):
        engine.train(prepared)
    saved = torch.load(prepared.checkpoint_path, weights_only=True)
    assert all(value.isfinite().all() for value in saved["method"].values())


def test_replay_batches_are_half_memory(small, make_run):
    scene = SecondTask(small("method=er", "labeled_batch=6"), make_run)
    (group,) = scene.method.draw(scene.setup.draws, scene.now(0, 0)).values()
    assert len(group) == 12 and group.old.sum() == 6
    assert np.array_equal(group.labels.numpy(), scene.run.source.train_labels[group.keys.ids])
