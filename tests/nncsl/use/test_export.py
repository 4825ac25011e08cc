"""An exported file answers as the run does, in programs that know nothing of nncsl."""

import json
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
import safetensors
import torch

import nncsl
from nncsl import cli, config, methods, networks
from nncsl.config import build
from nncsl.data.catalog import KNOWN
from nncsl.errors import UserError
from nncsl.export import read_weights
from nncsl.record.state import RunState
from nncsl.use.model import Model
from nncsl.use.restored import Restored

SUFFIXES = ("safetensors", "onnx", "pt2")


def runtime(path):
    """A session on one core, as an embedded program would have it."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def answers(path, pixels):
    """Scores and probabilities from the file alone."""
    if path.suffix == ".onnx":
        return [torch.from_numpy(found) for found in runtime(path).run(None, {"pixels": pixels.numpy()})]
    network = torch.export.load(path).module() if path.suffix == ".pt2" else read_weights(path)
    with torch.no_grad():
        return list(network(pixels))


def description(path):
    if path.suffix == ".onnx":
        return json.loads(runtime(path).get_modelmeta().custom_metadata_map["nncsl"])
    if path.suffix == ".pt2":
        extra = {"nncsl.json": ""}
        torch.export.load(path, extra_files=extra)
        return json.loads(extra["nncsl.json"])
    with safetensors.safe_open(path, "pt") as opened:
        return json.loads(opened.metadata()["nncsl"])


@pytest.fixture
def pixels(digits):
    """All test images as the file wants them: float32 in [0, 1], [n, 1, 8, 8]."""
    return torch.from_numpy(digits.test.array).permute(0, 3, 1, 2).float() / 255


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_test_image_gets_the_answer_of_predict(trained, digits, pixels, tmp_path, suffix, capsys):
    path = tmp_path / f"model.{suffix}"
    assert cli.main(["export", str(trained()), "--to", str(path)]) == 0
    assert "pixels [n, 1, 8, 8]: float32, gray, bytes / 255" in capsys.readouterr().out
    expected = nncsl.load(trained(), device="cpu").predict(digits.test.array)
    scores, probabilities = answers(path, pixels)
    assert np.abs(probabilities.numpy() - expected.probabilities).max() < 1e-5
    assert torch.allclose(scores.softmax(dim=1), probabilities, atol=1e-6)
    assert [expected.classes[number] for number in scores.argmax(dim=1)] == expected.names
    for n in (1, 7):
        assert torch.allclose(answers(path, pixels[:n])[1], probabilities[:n], atol=1e-6)
    facts = description(path)
    assert facts["classes"] == list("0123456789") and facts["nncsl"] == nncsl.__version__
    assert facts["input"]["shape"] == ["n", 1, 8, 8] and facts["input"]["normalization"]["mean"] == [0.305]


@pytest.mark.parametrize("method", ["icarl", "ccic", "foster", "ordisco"])
def test_methods_with_more_than_a_head_export_what_predicts(trained, digits, pixels, tmp_path, method):
    model = nncsl.load(trained(method), device="cpu")
    expected = model.predict(digits.test.array)
    for suffix in SUFFIXES:
        path = tmp_path / f"model.{suffix}"
        if suffix == "safetensors" and method in ("icarl", "ccic"):
            with pytest.raises(UserError, match=f"{method} decides by .* use .onnx or .pt2"):
                model.export(path)
            assert not list(tmp_path.iterdir())
            continue
        model.export(path)
        scores, probabilities = answers(path, pixels)
        assert [expected.classes[number] for number in scores.argmax(dim=1)] == expected.names
        assert np.abs(probabilities.numpy() - expected.probabilities).max() < 1e-5


def test_an_export_that_would_answer_otherwise_is_not_written(trained, tmp_path, monkeypatch):
    """A method that inherits ORDisCo's average network, and predicts by the other one."""
    model = nncsl.load(trained("ordisco"), device="cpu")
    kind = type(model.run.method)
    monkeypatch.setattr(kind, "predict", lambda self, images: networks.head_logits(self.network, images))
    with pytest.raises(UserError, match="is not written"):
        model.export(tmp_path / "model.pt2")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["digits", "cifar10-small", "cifar10", "imagenet100"])
def test_the_network_of_every_preset_exports_to_onnx(name, tmp_path):
    """Of its size, with statistics as of real activations: untrained is enough. CIFAR-100 has CIFAR-10's networks."""
    loaded = config.load(name)
    classes = KNOWN[loaded.dataset].classes
    method = methods.build(loaded, classes)
    size, channels = loaded.views.large.size, len(loaded.views.mean)
    images = torch.rand(4, channels, size, size, generator=torch.Generator().manual_seed(1))
    networks.recalibrate(method.network, [images])
    names = tuple(f"class {label}" for label in range(classes))
    run = Restored(tmp_path, loaded, RunState(), method.eval(), torch.device("cpu"), names, tuple(range(classes)))
    Model(run).export(tmp_path / "model.onnx")
    _, found = answers(tmp_path / "model.onnx", images)
    mean, std = (torch.tensor(values)[:, None, None] for values in (loaded.views.mean, loaded.views.std))
    with torch.no_grad():
        expected = method.predict((images - mean) / std).softmax(dim=1)
    assert (found - expected).abs().max() < 1e-5 and found.std() > 1e-4


def test_a_run_on_its_way_exports_the_classes_it_has_met(trained, tmp_path, pixels):
    run = nncsl.load(trained(), device="cpu").run
    half = Model(replace_seen(run, (0, 1, 2, 3, 4)))
    half.export(tmp_path / "model.safetensors")
    scores, _ = answers(tmp_path / "model.safetensors", pixels)
    assert scores.shape == (500, 5) and description(tmp_path / "model.safetensors")["classes"] == list("01234")


def replace_seen(run, seen):
    return run._replace(seen=seen)


def test_the_digits_model_answers_in_under_a_millisecond(tmp_path, record_property):
    """On one core, image by image; the preset's own network, not the small one of these tests."""
    loaded = replace(config.load("digits", map(build.parse_assignment, ["device=cpu"])))
    method = methods.build(loaded, 10).eval()
    names = tuple("0123456789")
    Model(Restored(tmp_path, loaded, RunState(), method, torch.device("cpu"), names, tuple(range(10)))).export(
        tmp_path / "model.onnx"
    )
    session, image = runtime(tmp_path / "model.onnx"), np.zeros((1, 1, 8, 8), np.float32)
    rounds = []
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(200):
            session.run(None, {"pixels": image})
        rounds.append((time.perf_counter() - began) / 200)
    record_property("milliseconds", 1000 * min(rounds))
    print(f"{1000 * min(rounds):.3f} ms per image")
    assert min(rounds) < 1e-3


def test_a_missing_package_costs_one_line(trained, tmp_path):
    code = "import sys; sys.modules['onnxscript'] = None; from nncsl.cli import main; sys.exit(main(sys.argv[1:]))"
    words = ["export", str(trained()), "--to", str(tmp_path / "model.onnx")]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert done.returncode == 2 and "needs onnxscript" in done.stderr and 'pip install "nncsl[export]"' in done.stderr
    assert len(done.stderr.splitlines()) == 1 and not list(tmp_path.iterdir())


def test_unknown_endings_are_refused(trained, tmp_path, capsys):
    assert cli.main(["export", str(trained()), "--to", str(tmp_path / "model.pkl")]) == 2
    assert ".safetensors, .onnx, .pt2" in capsys.readouterr().err
