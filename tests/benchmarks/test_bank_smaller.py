"""The rows of a real bank in fewer bytes, and what distillation makes of them."""

import csv
import json

import pytest
import torch

from nncsl import cli
from nncsl.benchmarks import bank_smaller, bank_ways

SHORT = ("epochs=2", "tasks=2", "network.width=8", "network.hidden=16", "network.blocks=[1]", "bank_views=2")


def train(folder, *settings):
    command = ["train", "--out", str(folder), "--quiet", "--no-report"]
    assert cli.main([*command, *(part for s in (*SHORT, *settings) for part in ("--set", s))]) == 0
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(tmp_path_factory.mktemp("runs") / "short", "bank_codec=fp32")


def test_all_ways_are_measured_and_recorded(run, tmp_path):
    assert bank_smaller.main([str(run), "--batches", "2", "--out", str(tmp_path)]) == 0
    with (tmp_path / "bank-smaller.csv").open(newline="") as file:
        rows = {row["way"]: row for row in csv.DictReader(file)}
    assert list(rows) == list(bank_ways.WAYS) and {row["run"] for row in rows.values()} == {"short"}
    number = {way: {column: float(row[column]) for column in bank_smaller.COLUMNS[2:]} for way, row in rows.items()}
    assert [number[way]["bytes per view"] for way in ("fp16", "int8", "int4", "2 bit")] == [256, 130, 66, 34]
    assert number["pq64"]["bytes per view"] > 64 < number["image's mean + int4"]["bytes per view"] < 100
    for column in ("mean error of a probability", "largest error of a probability", "error of the gradient"):
        errors = [number[way][column] for way in ("fp16", "int8", "int4", "2 bit")]
        assert errors[0] > 0 and errors == sorted(errors) and errors[0] < errors[-1] / 50
    assert number["fp16"]["same top class"] > 0.99 and number["fp16"]["error of the gradient"] < 0.01
    about = json.loads((tmp_path / "bank-smaller.json").read_text())
    assert about["runs"]["short"].startswith("nncsl train --quiet --no-report --set epochs=2")
    assert str(run.parent) not in json.dumps(about)
    assert about["at the paper's sizes, without keys"][0]["rows"] == 5000 * 16 + 500 * 32


def test_rows_as_they_are_change_nothing_and_others_a_lot(run):
    scene = bank_smaller.look(run, 2)
    assert bank_smaller.judge(scene, scene.rows.features) == (1, 0, 0, 0)
    same, _, _, gradient = bank_smaller.judge(scene, scene.rows.features.flip(0))
    assert same < 0.9 and gradient > 0.5
    supports, classes = scene.rows.classes >= 0, scene.rows.classes
    assert 0 < supports.sum() < len(classes)
    means = bank_ways.class_means(scene.rows).features
    for label in set(classes[supports]):
        ours = torch.from_numpy(classes == label)
        torch.testing.assert_close(
            means[ours], scene.rows.features[ours].mean(0).expand(int(ours.sum()), -1), atol=1e-3, rtol=1e-3
        )
    assert torch.equal(means[torch.from_numpy(~supports)], scene.rows.features[torch.from_numpy(~supports)])


def test_a_bank_that_is_not_exact_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="rows in int8, expected some in fp32"):
        bank_smaller.look(train(tmp_path / "rounded", "bank_codec=int8"), 1)
