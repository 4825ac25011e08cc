"""The probe on a real run of digits, and its two measures where the answer is known."""

import csv

import numpy as np
import pytest
import torch

from nncsl import cli
from nncsl.benchmarks import probe


def test_a_finished_run_is_probed_and_a_row_replaced(tmp_path, capfd):
    run = tmp_path / "runs" / "er"
    settings = ("epochs=2", "network.width=8", "network.hidden=16")
    command = ["train", "--method", "er", "--out", str(run), "--quiet", "--no-report"]
    assert cli.main([*command, *(part for s in settings for part in ("--set", s))]) == 0
    out = tmp_path / "probe.csv"
    for labels in (100, 1000):
        assert probe.main([str(run), "--labels", str(labels), "--out", str(out)]) == 0
    with out.open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["run"] == "runs/er" and row["method"] == "er" and row["epochs"] == "2" and row["labels"] == "1000"
    # A thousand labels of all classes know more than forty, learned two classes at a time.
    assert float(row["linear probe"]) > float(row["average accuracy"])
    assert 1 <= float(row["effective rank"]) <= 128
    assert "runs/er" in capfd.readouterr().out


def test_a_run_that_is_not_finished_is_refused(tmp_path, capfd):
    with pytest.raises(SystemExit):
        probe.main([str(tmp_path)])
    assert "is not a finished run" in capfd.readouterr().err


def test_parallel_vectors_have_rank_one_and_evenly_spread_ones_all():
    direction = torch.randn(1, 8, generator=torch.Generator().manual_seed(0))
    assert probe.effective_rank(torch.linspace(-1, 1, 50)[:, None] * direction) == pytest.approx(1.0)
    assert probe.effective_rank(torch.eye(8).repeat(3, 1)) == pytest.approx(8.0)


def test_separable_classes_are_all_recognized_and_shuffled_labels_are_not():
    generator = torch.Generator().manual_seed(0)
    labels = np.arange(300) % 3
    points = torch.nn.functional.one_hot(torch.from_numpy(labels), 3) * 4.0 + torch.randn(300, 3, generator=generator)
    known, asked = points[:200], points[200:]
    assert probe.linear_accuracy(known, labels[:200], asked, labels[200:]) > 95
    assert probe.linear_accuracy(known, np.roll(labels[:200], 1), asked, labels[200:]) < 5
