"""The ledger: every kind of keeper, its bytes counted by hand or from the run's files.

tests/nncsl/methods/test_every_method.py compares every method's with what its checkpoint has.
"""

import json

import numpy as np
import torch

from nncsl import engine, runs
from nncsl.featurebank import FeatureBank
from nncsl.record import checkpoint, ledger
from tests.nncsl.scenes import trained_in_pieces

SHORT = ("tasks=2", "epochs=1", "unlabeled_batch=160", "unlabeled_fraction=0.2")
IMAGE, CLASSES, FEATURES = 8 * 8, 10, 32  # digits, and the test network's last width
MEMORY = {"memory": 40 * IMAGE, "labels": 40 * (8 + 8)}  # four labels a class


def state_bytes(run, *prefixes):
    """Bytes of what the run's last checkpoint has of the method under these names."""
    saved = checkpoint.load(run.checkpoint_path)["method"]
    return sum(t.numel() * t.element_size() for name, t in saved.items() if name.startswith(prefixes))


def second_task(run):
    """The ledger of task 2."""
    _, state = engine.train(run)
    return state.kept[1]


def test_what_is_kept_of_each_remembered_image(small, make_run):
    own = {"own.stored_ids": 40 * 8, "own.stored_logits": 40 * CLASSES * 4, "own.counters": 40 * 8}
    assert second_task(make_run(small("method=xder", *SHORT))) == MEMORY | own


def test_unlabeled_images_count_once_and_resting_weights_count(small, make_run):
    run = make_run(small("unlabeled_memory=30", "bank_refresh_epochs=1", "bank_codec=int8", *SHORT, "epochs=2"))
    _, state = engine.train(run)
    memory, found = state.memory, state.kept[1]
    only_unlabeled = set(memory.unlabeled) - set(memory.ids)
    assert len(memory.unlabeled) == 30 and found["unlabeled_memory"] == len(only_unlabeled) * IMAGE
    assert found["labels"] == 40 * 16 + 30 * 8
    with FeatureBank.open(run.folder / "bank") as bank:
        views = {"large": 2, "small": 2, "support": 2}
        shown = len(run.tasks[1].unlabeled) + 30  # those of task 1 that are remembered
        assert len(bank) == 2 * (shown * (views["large"] + views["small"]) + 20 * views["support"])
        assert found["bank"] == len(bank) * (128 + 2 + 12)  # numbers and a scale; image and slot
        assert found["bank"] <= bank.nbytes < 1.1 * found["bank"]
    resting = torch.load(run.folder / "checkpoint" / "teacher.pt", weights_only=True)["method"]
    assert found["teacher"] == sum(t.numel() * t.element_size() for t in resting.values())


def test_a_copied_teacher_counts_with_all_its_weights(small, make_run):
    run = make_run(small("teacher_mode=model", *SHORT))
    found = second_task(run)
    copied = checkpoint.load(run.checkpoint_path)["teacher"]
    assert found == MEMORY | {"teacher": sum(t.numel() * t.element_size() for t in copied.values())}


def test_class_means_and_a_bank_of_sigmoids(small, make_run):
    sets, old = 32, 5
    rows = (20 + 20) * sets  # the task's labeled images and the memory's
    bank = {"bank": rows * (2 * old + 12), "own.means": CLASSES * FEATURES * 4}
    assert second_task(make_run(small("method=icarl", *SHORT))) == MEMORY | bank


def test_a_second_network(small, make_run):
    """FOSTER's other branch while the new one trains; its bank is of features then."""
    run = make_run(small("method=foster", *SHORT))
    found = second_task(run)
    assert found["own.other"] == state_bytes(run, "network.")
    assert found["own.fc"] == CLASSES * (2 * FEATURES + 1) * 4 and found["own.aux"] == CLASSES * (FEATURES + 1) * 4
    assert found["memory"] == 20 * IMAGE and found["bank"] == 40 * 32 * (2 * FEATURES + 12)


def test_importances_and_last_weights(small, make_run):
    run = make_run(small("method=oewc", *SHORT))
    names = ("network.stem.", "network.blocks.", "network.head.")
    found = second_task(run)
    saved = checkpoint.load(run.checkpoint_path)["method"]
    trained = [name for name in saved if name.startswith(names) and "running" not in name and "num_batches" not in name]
    size = sum(saved[name].numel() * 4 for name in trained)
    assert found == {"own.anchor": size, "own.fisher": size}


def test_a_second_memory_shares_images_with_the_first(small, make_run):
    """PseudoER's: what both hold lies in the run's folder once, and counts once."""
    run = make_run(small("method=pseudoer", *SHORT))
    method, state = engine.train(run)
    found = ledger.kept(run.source.train, state.memory, method, engine.Teacher())
    (path,) = (run.folder / "memory").glob("*.npz")
    with np.load(path) as file:
        assert found["memory"] + found["own.images"] == file["pixels"].nbytes
    assert found["own.kept"] == found["own.kept_labels"] == 40 * 8 and "own.labels" not in found
    images = np.union1d(run.tasks[1].unlabeled, run.tasks[1].labeled)
    assert state.kept[1]["own.labels"] == 8 * len(images)  # a guess for each image of the task


def test_it_is_recorded_per_task_and_at_its_fullest(small, tmp_path, capsys):
    summary = runs.start(small(*SHORT), tmp_path / "run", quiet=True)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    by_task = [line["kept"] for line in lines if line["kind"] == "task"]
    assert summary["kept_by_task"] == by_task and summary["kept"] == by_task[1]
    assert by_task[0] == {"memory": 20 * IMAGE, "labels": 20 * 16, "total": 20 * (IMAGE + 16)}
    assert all(parts["total"] == sum(parts.values()) - parts["total"] for parts in by_task)
    assert f"{by_task[1]['total'] / 1e6:.3g} MB (bank" in capsys.readouterr().out


def test_a_run_in_pieces_has_the_same_ledger(small, make_run, monkeypatch):
    """LwF's first phase asks nothing: a bank of the phase before must not be seen by some processes only."""
    settings = small("method=lwf", *SHORT, "tasks=5")
    _, whole = engine.train(make_run(settings, "whole"))
    _, pieces, _ = trained_in_pieces(make_run(settings, "pieces"), monkeypatch, tasks=[2])
    assert pieces.kept == whole.kept and set(whole.kept) == set(range(5))
