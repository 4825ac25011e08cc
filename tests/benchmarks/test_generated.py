"""Generated images on a real run of digits, and both measures where the answer is known."""

import csv

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.svm import SVC

from nncsl import cli
from nncsl.benchmarks import generated

SHORT = ("epochs=1", "network.width=8", "network.hidden=16", "tasks=2", "unlabeled_batch=200")


def trained(folder, method, *more):
    settings = [word for setting in (*SHORT, *more) for word in ("--set", setting)]
    assert cli.main(["train", "--method", method, "--out", str(folder), "--quiet", "--no-report", *settings]) == 0
    return str(folder)


def test_a_run_has_a_row_before_training_and_one_after_each_task(tmp_path, capfd):
    run = trained(tmp_path / "runs" / "made", "ordisco", "own.channels=8", "labeled_batch=8")
    out = tmp_path / "generated.csv"
    for _ in range(2):  # the second time rows are replaced
        assert generated.main([run, "--out", str(out)]) == 0
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["run"], row["after task"]) for row in rows] == [("runs/made", str(n)) for n in range(3)]
    assert [row["images"] for row in rows] == ["200", "100", "200"]
    assert [len(row["by task"].split()) for row in rows] == [2, 1, 2]
    for row in rows:
        assert 0 <= float(row["recognized"]) <= 100 and float(row["real images recognized"]) > 95
        assert row["seed"] == "0" and row["commit"]
    assert "recognized" in capfd.readouterr().out


def test_a_run_without_generated_images_is_refused(tmp_path, capfd):
    run = trained(tmp_path / "er", "er")
    for folder, message in ((run, "has made no images: its method is er"), (str(tmp_path), "is not a finished run")):
        with pytest.raises(SystemExit):
            generated.main([folder, "--out", str(tmp_path / "out.csv")])
        assert message in capfd.readouterr().err


def test_real_images_are_recognized_and_those_of_another_class_are_not():
    digits = load_digits()
    images = (digits.images[..., None] * 255 / 16).astype(np.uint8)
    model = SVC().fit(generated.vectors(images[:1000]), digits.target[:1000])
    rest, labels = images[1000:], digits.target[1000:]
    by_class = {c: rest[labels == c] for c in range(10)}
    assert generated.recognized(model, by_class) > 90
    assert generated.recognized(model, {c: by_class[(c + 1) % 10] for c in range(10)}) < 5


def test_one_image_again_and_again_has_no_variety():
    images = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 1), dtype=np.uint8)
    assert generated.variety({0: np.repeat(images[:1], 5, axis=0)}) == 0
    pairs = [np.linalg.norm(a / 255.0 - b / 255.0) for a in images for b in images]
    assert generated.variety({0: images, 1: images}) == pytest.approx(sum(pairs) / 30)
