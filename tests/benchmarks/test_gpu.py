"""The command that a GPU's owner runs, here on a CPU: every part is asked, what fails is said, one file has it all."""

import argparse
import json

import pytest

from nncsl.benchmarks import gpu, gpu_training
from nncsl.cli import main


def test_one_file_has_every_part_that_was_asked(tmp_path, capfd):
    out = tmp_path / "sent.json"
    given = ["--device", "cpu", "--quick", "--parts", "limits", "parity", "views", "--out", str(out)]
    assert main(["bench", "gpu", *given]) == 0
    report = json.loads(out.read_text())
    assert list(report["parts"]) == ["limits", "parity", "views"]
    parts = {name: part["found"] for name, part in report["parts"].items()}
    assert {row["unit"] for row in parts["limits"]} == {"TFLOP/s", "GB/s"}
    assert all(row["rate"] > 0 for row in parts["limits"])
    assert {row["kernel"] for row in parts["parity"]} == {"snn", "nnd_loss"}
    assert all(row["error"] <= 2 * row["plain torch"] + 1e-6 for row in parts["parity"])
    assert all(row["per second"] > 0 for row in parts["views"])
    assert {"device", "versions", "commit"} <= set(report["machine"])
    said = capfd.readouterr().out
    assert "parity (about 1 min)" in said and f"wrote {out}" in said


def test_a_part_that_fails_is_named_and_the_others_are_kept(tmp_path, capfd):
    out = tmp_path / "sent.json"
    given = ["--device", "cpu", "--quick", "--data-dir", str(tmp_path), "--parts", "views", "limits", "--out", str(out)]
    assert gpu.main(given) == 1
    parts = json.loads(out.read_text())["parts"]
    assert "cifar-10-batches-bin" in parts["views"]["error"] and parts["limits"]["found"]
    assert "these parts failed: views" in capfd.readouterr().out


def test_modes_are_trained_by_the_real_command(monkeypatch):
    """A mode that this machine or these settings refuse is a line of the table, not the end of it."""
    modes = {"bank": (), "micro-batches": ("micro_batch=16",), "refused": ("precision=fp7",)}
    monkeypatch.setattr(gpu_training, "MODES", modes)
    options = argparse.Namespace(preset="digits", device="cpu", quick=True, data_dir=None)
    bank, micro, refused = gpu_training.modes(options)
    assert bank["images per second"] > 0 and bank["peak MB"] > 0 and not bank["note"]
    assert max(bank["of the fastest"], micro["of the fastest"]) == 1
    assert refused["images per second"] is None and "precision" in refused["note"] and "fp7" in refused["note"]


def test_without_a_gpu_it_says_so(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit, match="no CUDA or ROCm device"):
        gpu.main([])
