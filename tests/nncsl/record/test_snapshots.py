"""What is kept of the test set at each task's boundary: right, and bounded."""

import numpy as np
import pytest
import torch

from nncsl import engine, evaluation
from nncsl.methods.base import unit_projections
from nncsl.record.snapshots import balanced, read_snapshot


def test_a_run_keeps_projections_and_confusion_of_every_task(small, make_run):
    prepared = make_run(small("tasks=2", "epochs=1"))
    method, state = engine.train(prepared)
    for task, seen in enumerate(state.seen_accuracy):
        snapshot = read_snapshot(prepared.folder, task)
        classes = [c for t in prepared.tasks[: task + 1] for c in t.classes]
        counts = snapshot.confusion[classes]
        assert snapshot.confusion.sum() == 500
        assert 100 * counts[np.arange(len(classes)), classes].sum() / counts.sum() == pytest.approx(seen)
    assert read_snapshot(prepared.folder, 2) is None
    source = prepared.source
    unit = evaluation.answers(
        method,
        source.test,
        np.arange(len(source.test)),
        prepared.config.views,
        torch.device("cpu"),
        unit_projections,
    ).numpy()
    assert snapshot.projections.dtype == np.float16 and np.abs(snapshot.projections - unit).max() < 1e-3
    assert (snapshot.labels == source.test_labels).all() and snapshot.class_names == source.class_names


def test_a_balanced_part_takes_equally_many_of_each_class():
    labels = np.repeat(np.arange(7), [1000, 5, 300, 1000, 40, 1000, 1000])
    chosen = balanced(labels, 700)
    counts = np.bincount(labels[chosen])
    assert counts.tolist() == [100, 5, 100, 100, 40, 100, 100]
    assert len(np.unique(chosen)) == len(chosen) and (np.diff(chosen) > 0).all()
    assert len(balanced(np.arange(5000), 2000)) == 2000
    assert balanced(np.array([3, 3, 3]), 2000).tolist() == [0, 1, 2]
