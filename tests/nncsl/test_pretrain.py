"""``nncsl pretrain``: a backbone from images alone, interrupted and continued, and taken by a training."""

import json

import pytest
import torch
from safetensors import safe_open

from nncsl import cli, methods, runs
from nncsl.errors import ConfigError
from nncsl.methods.pretrain import Pretrain
from nncsl.networks import weights
from nncsl.record import checkpoint
from nncsl.record import folder as run_folder
from tests.nncsl.methods import test_killed
from tests.nncsl.scenes import SecondTask

QUICK = ["--quiet", "--set", "network.width=8", "--set", "network.hidden=16", "--set", "unlabeled_batch=256"]


def pretrain(*words):
    return cli.main(["pretrain", "--dataset", "digits", "--epochs", "2", *QUICK, *map(str, words)])


def test_a_killed_pretraining_goes_on_and_its_file_trains(tmp_path, capsys):
    whole, broken = tmp_path / "whole.safetensors", tmp_path / "broken.safetensors"
    assert pretrain("--out", whole) == 0
    said = capsys.readouterr().out
    assert "2 epochs on 1,297 images of digits, without labels" in said and "accuracy" not in said
    loaded = run_folder.read_config(tmp_path / "whole.pretraining")
    child = test_killed.processes.Process(
        target=test_killed.killed_at, args=((0, "train", 7), loaded, tmp_path / "broken.pretraining", 1)
    )
    child.start()
    child.join()
    assert not broken.exists() and pretrain("--out", broken) == 0
    assert weights.sha256(broken) == weights.sha256(whole)
    assert pretrain("--out", broken) == 2 and "is there already" in capsys.readouterr().err
    with safe_open(whole, "pt") as file:
        facts = json.loads(file.metadata()["nncsl"])
    assert facts["dataset"] == "digits" and facts["images"] == 1297 and facts["epochs"] == 2 and facts["seed"] == 0

    settings = ["--epochs", "1", "--tasks", "2", "--set", f"network.weights={whole}", "--set", "network.frozen=true"]
    run = tmp_path / "run"
    assert cli.main(["train", *QUICK, "--no-report", "--out", str(run), *settings]) == 0
    saved = checkpoint.load(run / "checkpoint" / "state.pt")
    with safe_open(whole, "pt") as file:
        assert torch.equal(saved["method"]["network.stem.0.weight"], file.get_tensor("stem.0.weight"))
    assert saved["config"]["network"]["weights_sha256"] == weights.sha256(whole)
    # A run goes on with its own weights only, wherever they lie now.
    (run / "summary.json").unlink()
    moved = whole.rename(tmp_path / "moved.safetensors")
    with pytest.raises(ConfigError, match="no such file"):
        runs.resume(run, [], quiet=True)
    runs.resume(run, [{"network": {"weights": str(moved)}}], quiet=True)
    moved.write_bytes(b"other")
    (run / "summary.json").unlink()
    with pytest.raises(ConfigError, match="the file has changed"):
        runs.resume(run, [{"network": {"weights": str(moved)}}], quiet=True)


def test_other_settings_are_no_continuation(tmp_path, capsys):
    out = tmp_path / "b.safetensors"
    assert pretrain("--out", out) == 0
    out.unlink()
    assert pretrain("--out", out, "--seed", 1) == 2
    assert "seed is 0 there, 1 was asked for" in capsys.readouterr().err
    assert pretrain("--out", out, "--set", "network.frozen=true") == 2 and "learns nothing" in capsys.readouterr().err
    assert pretrain("--out", tmp_path / "b.pt") == 2 and "ends with .safetensors" in capsys.readouterr().err


def test_views_of_an_image_are_each_others_class(small, make_run):
    """The loss is the definition, and has its minimum where every view finds its own image."""
    scene = SecondTask(small("method=pretrain"), make_run)
    method = scene.method
    assert isinstance(method, Pretrain) and "pretrain" not in methods.METHODS
    images = torch.nn.functional.normalize(torch.randn(5, 8, dtype=torch.float64), dim=1)
    queries = torch.nn.functional.normalize(torch.randn(10, 8, dtype=torch.float64), dim=1)
    cross, minus_entropy, found = method._compare(queries, images)
    probabilities = (queries @ images.T / method.config.tau).softmax(dim=1)
    own = torch.arange(5).repeat(2)
    assert cross.item() == pytest.approx(-probabilities[torch.arange(10), own].log().mean().item())
    mean = probabilities.mean(dim=0)
    assert minus_entropy.item() == pytest.approx((mean * mean.log()).sum().item())
    assert found.item() == pytest.approx((probabilities.argmax(dim=1) == own).float().mean().item())
    assert method._compare(images.repeat(2, 1), images)[2] == 1
