"""Runs with backbones from elsewhere predict and are exported, wherever the file of their weights is by then."""

import numpy as np
import pytest
import torch

import nncsl
from nncsl import networks
from nncsl.config import NetworkConfig
from nncsl.networks import weights
from tests.nncsl.use.test_export import answers, description

FEW = ("epochs=1", "unlabeled_fraction=0.2", "teacher_mode=none", "network.frozen=true", "network.stem=imagenet")


@pytest.mark.parametrize(
    ("backbone", "suffixes"), [("resnet18", ("safetensors", "onnx")), ("timm:test_vit", ("safetensors", "pt2"))]
)
def test_they_predict_and_are_exported(trained, digits, tmp_path, backbone, suffixes):
    path = tmp_path / "weights.safetensors"
    weights.write(
        path, networks.build(NetworkConfig(backbone=backbone, stem="imagenet"), 3, 10, seed=1).backbone_state(), {}
    )
    folder = trained("csl", *FEW, f"network.backbone={backbone}", f"network.weights={path}")
    path.unlink()
    model = nncsl.load(folder, device="cpu")
    expected = model.predict(digits.test.array[:20])
    pixels = torch.from_numpy(digits.test.array[:20]).permute(0, 3, 1, 2).float() / 255
    for suffix in suffixes:
        model.export(target := tmp_path / f"model.{suffix}")
        assert np.abs(answers(target, pixels)[1].numpy() - expected.probabilities).max() < 1e-5
        assert description(target)["network"]["weights"] is None
