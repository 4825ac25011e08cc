"""Head or neighbors, on a real run of digits, and each rule where the answer is known."""

import csv

import pytest
import torch

from nncsl import cli, kernels
from nncsl.benchmarks import deciding
from nncsl.runs import evaluate

SHORT = ("epochs=2", "network.width=8", "network.hidden=16")


def trained(folder, *more):
    settings = [word for setting in (*SHORT, *more) for word in ("--set", setting)]
    assert cli.main(["train", "--out", str(folder), "--quiet", "--no-report", *settings]) == 0
    return folder


def test_a_finished_run_has_a_row_that_agrees_with_eval(tmp_path, capfd):
    run, out = trained(tmp_path / "runs" / "nncsl"), tmp_path / "deciding.csv"
    for _ in range(2):  # the second time the row is replaced
        assert deciding.main([str(run), "--out", str(out)]) == 0
    with out.open(newline="") as file:
        (row,) = csv.DictReader(file)
    means = evaluate(run)["mean"]
    assert row["head"] == f"{means['linear']:.1f}" == row["average accuracy"]
    assert row["neighbors"] == f"{means['nearest_neighbours']:.1f}"
    assert row["run"] == "runs/nncsl" and row["remembered"] == "40" and row["commit"]
    rules = [float(row[name]) for name in deciding.SHOWN if name not in ("run", "either", "mean of logs")]
    assert max(rules) <= float(row["either"]) <= 100
    assert "neig" in capfd.readouterr().out


def test_runs_without_neighbors_or_without_an_end_are_refused(tmp_path, capfd):
    for folder, message in (
        (trained(tmp_path / "forgetful", "tasks=1", "method=finetune"), "remembers no labeled images"),
        (tmp_path, "is not a finished run"),
    ):
        with pytest.raises(SystemExit):
            deciding.main([str(folder), "--out", str(tmp_path / "deciding.csv")])
        assert message in capfd.readouterr().err


def test_the_less_sure_images_are_the_neighbors():
    # Three images of class 0: the head is right and sure, right and not sure, wrong and not sure.
    head = torch.tensor([[0.95, 0.05], [0.6, 0.4], [0.3, 0.7]])
    neighbors = torch.tensor([[0.1, 0.9], [0.2, 0.8], [0.9, 0.1]])
    judged = deciding.Judged(head, neighbors, torch.zeros(3, dtype=torch.int64))
    assert deciding.by_threshold(judged, deciding.ALWAYS).tolist() == [0, 0, 1]
    assert deciding.by_threshold(judged, 0.9).tolist() == [0, 1, 0]
    assert deciding.by_threshold(judged, deciding.NEVER).tolist() == [1, 1, 0]
    # .95 x .1 > .05 x .9; .6 x .2 < .4 x .8; .3 x .9 > .7 x .1
    assert deciding.by_both(judged).tolist() == [0, 1, 0]


def test_the_threshold_is_the_best_on_the_memory_and_the_lowest_of_equal_ones():
    labels = torch.zeros(2, dtype=torch.int64)
    right, wrong = torch.tensor([[0.8, 0.2]] * 2), torch.tensor([[0.2, 0.8]] * 2)
    assert deciding.chosen(deciding.Judged(right, wrong, labels)) == deciding.ALWAYS
    assert deciding.chosen(deciding.Judged(wrong, right, labels)) == 0.9  # the first that 0.8 does not reach
    mixed = deciding.Judged(torch.tensor([[0.95, 0.05], [0.4, 0.6]]), torch.tensor([[0.1, 0.9], [0.9, 0.1]]), labels)
    assert deciding.chosen(mixed) == 0.7


def test_a_remembered_image_is_judged_by_the_others_alone():
    supports = torch.nn.functional.normalize(torch.randn(12, 5, generator=torch.Generator().manual_seed(0)), dim=1)
    labels = torch.arange(12) % 3
    found = deciding.by_the_others(supports, labels, 3, 0.1)
    for row in range(12):
        others = torch.arange(12) != row
        expected = kernels.snn(
            supports[row : row + 1], supports[others], labels[others], num_classes=3, temperature=0.1
        )
        torch.testing.assert_close(found[row : row + 1].float(), expected)
