"""Tasks of unequal size, one of them without labels: every method trains what it can, or says before why it can't."""

import json

import pytest
import torch

from nncsl import engine, methods, runs
from nncsl.errors import ConfigError
from nncsl.featurebank import fingerprint
from nncsl.methods import slices
from nncsl.report import single
from nncsl.report.collect import collect
from tests.nncsl.methods import recorded
from tests.nncsl.scenes import trained_in_pieces


def settings(method, *others):
    chosen = [text for text in recorded.CASES[method] if not text.startswith(("tasks", "labels"))]
    own = ("own.epochs=1",) if method == "gdumb" else ()
    return (*chosen, "epochs=1", "unlabeled_batch=40", "unlabeled_fraction=0.1", "network.width=4", *own, *others)


@pytest.mark.parametrize("method", list(methods.METHODS))
def test_a_task_without_labels(small, tmp_path, capsys, method):
    loaded = small(*settings(method, "tasks=[5, 2, 3]", "labels=4/class,0%,1/class"))
    declared = methods.find(method)
    if declared.needs_labels:
        with pytest.raises(ConfigError, match=rf"{method} can't learn task 2 without labels: .*guessed"):
            runs.start(loaded, tmp_path / "run", quiet=True)
        assert not (tmp_path / "run").exists()
        return
    summary = runs.start(loaded, tmp_path / "run", quiet=True)
    said = capsys.readouterr().out
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    trained = {line["task"] for line in lines if line["kind"] == "epoch"}
    matrix = torch.tensor(summary["accuracy_matrix"])
    assert matrix.isfinite().all()
    if declared.one_task:
        assert trained == {0}
        return
    assert trained == ({0, 1, 2} if declared.uses_memory else {0, 2})
    assert "unequal size: 5, 2, 3 classes" in said
    assert "Task 2 has no labels" in said and ("nothing is trained" in said) == (not declared.uses_memory)
    page = single._header(collect(tmp_path / "run"), method)
    assert "Task 2 has no labels" in page and "unequal size: 5, 2, 3 classes" in page


def test_nothing_can_be_learned_from_a_first_task_without_labels(small, tmp_path):
    with pytest.raises(ConfigError, match="nncsl would begin with a task without any label"):
        runs.start(small("tasks=2", "labels=0%,4/class"), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_slices_of_unequal_size_are_contrasted_as_each_alone(small):
    """X-DER's slices are filled up with zeros, which no cosine and no sum notices."""
    method = methods.build(small("method=xder", "tasks=[5, 2, 3]", "labels=4/class"), num_classes=10)
    logits, labels = torch.randn(12, 10, dtype=torch.float64), torch.arange(12) % 3
    each = [logits[None, :, list(classes)] for classes in (range(5, 7), range(7, 10))]
    expected = torch.stack([slices.supervised_contrast(one, labels, 5.0) for one in each]).mean()
    assert torch.allclose(slices.supervised_contrast(method.sliced(logits, 1), labels, 5.0), expected)
    assert method.slice_of.tolist() == [0] * 5 + [1] * 2 + [2] * 3
    assert method.classes(1).tolist() == [5, 6, 7, 8, 9] and method.classes(0, 1).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("method", ["finetune", "nncsl"])
def test_stopped_after_a_task_without_labels_it_ends_the_same(small, make_run, monkeypatch, method):
    """The one skips that task, the other learns in it."""
    loaded = small(*settings(method, "tasks=[5, 2, 3]", "labels=4/class,0%,1/class"))
    expected, _ = engine.train(make_run(loaded, "whole"))
    resumed, state, places = trained_in_pieces(make_run(loaded, "pieces"), monkeypatch, tasks={1, 2})
    assert {task for task, *_ in places} == ({0, 2} if method == "finetune" else {0, 1, 2})
    assert fingerprint(resumed.state_dict()) == fingerprint(expected.state_dict()) and len(state.accuracy_matrix) == 3
