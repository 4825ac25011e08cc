"""The picture of a real run's projections."""

import matplotlib.image
import numpy as np
import pytest

from nncsl import cli
from nncsl.benchmarks import tsne

TINY = ("epochs=1", "network.width=8", "network.hidden=16", "tasks=2")


def test_a_picture_has_a_panel_after_the_first_and_the_last_task(tmp_path, capfd):
    run, out = tmp_path / "run", tmp_path / "tsne.png"
    settings = [word for setting in TINY for word in ("--set", setting)]
    assert cli.main(["train", "--out", str(run), "--quiet", "--no-report", *settings]) == 0
    assert tsne.main([str(run), "--out", str(out)]) == 0
    assert capfd.readouterr().out.strip().endswith(str(out))
    pixels = matplotlib.image.imread(out)[..., :3]
    assert pixels.shape[1] > 1.5 * pixels.shape[0]
    gray = (np.abs(pixels - float(tsne._GRAY)) < 0.01).all(axis=2)
    left, right = np.split(gray, [gray.shape[1] // 2], axis=1)
    assert left.sum() > 1000 and right.sum() < 100  # half of the classes are not learned yet, then all are


def test_a_run_that_is_not_finished_is_refused(tmp_path, capfd):
    with pytest.raises(SystemExit):
        tsne.main([str(tmp_path), "--out", str(tmp_path / "tsne.png")])
    assert "is not a finished run" in capfd.readouterr().err


def test_classes_keep_their_colors_and_differ():
    assert len({tsne._color(label, 10) for label in range(10)}) == 10
    assert len({tsne._color(label, 100) for label in range(100)}) == 100
