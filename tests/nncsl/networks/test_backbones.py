"""Backbones from elsewhere: the same gradient in less memory, weights from files, and errors that say what is wrong."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from nncsl import cli, config, methods, networks, optim, passes
from nncsl.data.torchvision_compat import torchvision
from nncsl.distributed import ALONE, Ranks
from nncsl.errors import ConfigError
from nncsl.networks import weights
from nncsl.passes import Passes, limits

SMALL = replace(config.load("cifar10-small").network, hidden=16, projection=8)


def built(backbone, channels=3, **changes):
    return networks.build(replace(SMALL, backbone=backbone, **changes), channels, 10, seed=0)


def gradient(network, images, how):
    """Of both outputs, with a fresh copy of the network, and the copy afterwards."""
    network = copy.deepcopy(network)
    found = passes.forward(network, how)(images)
    (found.projections.square().mean() + found.features.sin().mean()).backward()
    return torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None]), network


@pytest.mark.parametrize(
    ("backbone", "frozen_norms"),
    [
        ("resnet18", False),
        ("resnet50", False),
        ("timm:test_vit", False),
        ("timm:test_resnet", False),
        ("timm:test_resnet", True),
        ("timm:test_efficientnet", False),
    ],
)
def test_micro_batches_and_recomputation_give_the_gradient_of_the_whole_batch(backbone, frozen_norms, tmp_path):
    network = built(backbone).double()
    networks.set_training(network, freeze_batchnorm=frozen_norms)
    images = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0)).double()
    expected, reference = gradient(network, images, Passes())
    assert expected.abs().max() > 1e-4
    ways = [Passes(3, backbone == "resnet18", "disk", tmp_path)]
    for how in ways if network.divided else [*ways, Passes(0, True)]:
        found, after = gradient(network, images, how)
        assert ((found - expected).norm() / expected.norm()).item() < 1e-8, how
        for a, b in zip(reference.buffers(), after.buffers(), strict=True):
            assert torch.allclose(a.double(), b.double(), rtol=1e-9, atol=1e-9), how


def test_a_backbone_without_batchnorm_keeps_a_micro_batch_of_activations():
    from nncsl import accounting

    network = built("timm:test_vit")
    networks.set_training(network, freeze_batchnorm=False)
    held = []
    for how in (Passes(), Passes(2)):
        with accounting.saved_activations(network) as tally:
            passes.forward(network, how)(torch.randn(16, 3, 32, 32)).projections.sum().backward()
        held.append(tally.peak)
    assert held[1] < held[0] / 4


@pytest.mark.parametrize(("backbone", "frozen"), [("timm:test_vit", False), ("residual", True)])
def test_units_that_ranks_share_give_the_same_gradient(backbone, frozen):
    network = built(backbone, frozen=frozen).double()
    networks.set_training(network, freeze_batchnorm=False)
    images = torch.randn(9, 3, 16, 16).double()
    expected, _ = gradient(network, images, Passes())
    for how in (Passes(), Passes(2)):
        ranks, shared = Ranks(exact=True), copy.deepcopy(network)
        found = ranks.forward(shared, how)(images)
        (found.projections.square().mean() + found.features.sin().mean()).backward()
        ranks.sum_gradients()
        found = torch.cat([p.grad.flatten() for p in shared.parameters() if p.grad is not None])
        assert ((found - expected).norm() / expected.norm()).item() < 1e-8, how


def test_the_divided_network_computes_what_torchvision_does():
    """In its own stem, and with the weights that it saves."""
    theirs = torchvision.models.resnet18(weights=None).eval()
    network = built("resnet18", stem="imagenet").eval()
    theirs.load_state_dict(network.backbone_state(), strict=False)
    theirs.fc = nn.Identity()
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.allclose(network(images).features, theirs(images), atol=1e-5)


def test_gray_images_are_shown_as_colored_ones():
    network = built("resnet18", channels=1).eval()
    gray = torch.randn(2, 1, 8, 8)
    with torch.no_grad():
        assert torch.equal(network(gray).features, network(gray.expand(-1, 3, -1, -1)).features)


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_weights_of_a_file_are_taken_and_a_classifier_is_left(tmp_path, suffix, capsys):
    published = torchvision.models.resnet18(weights=None).state_dict()
    path = tmp_path / f"resnet18.{suffix}"
    if suffix == "pt":
        torch.save({"state_dict": published}, path)
    else:
        weights.write(path, published, {})
    network = built("resnet18", stem="imagenet", weights=str(path), frozen=True)
    assert torch.equal(network.stem[0].weight, published["conv1.weight"])
    assert torch.equal(network.blocks[-1].bn2.running_var, published["layer4.1.bn2.running_var"])
    assert "fc.bias, fc.weight belong to a classifier" in capsys.readouterr().err
    assert {p.requires_grad for p in network.blocks.parameters()} == {False}
    assert {p.requires_grad for p in network.projector.parameters()} == {True}


def test_weights_that_do_not_fit_are_listed(tmp_path):
    path = tmp_path / "resnet18.safetensors"
    weights.write(path, torchvision.models.resnet18(weights=None).state_dict(), {})
    with pytest.raises(ConfigError, match=r"of another shape: conv1.weight \[64, 3, 7, 7\], \[64, 3, 3, 3\] expected"):
        built("resnet18", stem="cifar", weights=str(path))
    with pytest.raises(ConfigError, match=r"not in the file: layer1.2.conv1.weight.* and \d+ more") as raised:
        built("resnet34", stem="imagenet", weights=str(path))
    assert "network.backbone" in str(raised.value)
    (tmp_path / "broken.pt").write_bytes(b"not weights")
    with pytest.raises(ConfigError, match=r"broken.pt can't be read"):
        built("resnet18", weights=str(tmp_path / "broken.pt"))
    with pytest.raises(ConfigError, match="no such file"):
        built("resnet18", weights=str(tmp_path / "absent.pt"))


def test_a_run_knows_its_weights_by_their_checksum(tmp_path):
    path = tmp_path / "weights.safetensors"
    weights.write(path, built("residual").backbone_state(), {})
    settings = weights.pinned(replace(SMALL, weights=str(path)))
    assert settings.weights_sha256 == weights.sha256(path) and weights.pinned(settings) == settings
    weights.write(path, built("residual", width=16).backbone_state(), {})
    with pytest.raises(ConfigError, match=f"{settings.weights_sha256} was expected: the file has changed"):
        weights.pinned(settings)


OWN = """
import torch
from torch import nn

def tiny():
    return nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())

def dropping():
    return nn.Sequential(nn.Dropout2d(0.5), *tiny())

def maps():
    return nn.Conv2d(3, 6, 3)

def nothing():
    return "no module"
"""


def test_a_function_of_ones_own_is_found_in_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "own_backbones.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    network = built("own_backbones:tiny")
    assert network(torch.zeros(2, 3, 9, 9)).features.shape == (2, 6) and network.head.in_features == 6
    for name, said in {
        "own_backbones:maps": r"made \[2, 6, 62, 62\] of 2 images: expected features",
        "own_backbones:nothing": "returned str: expected a torch.nn.Module",
        "own_backbones:absent": "has no function 'absent'",
        "not_there:tiny": "importable from",
        "resnet19": "expected residual, resnet18",
        "timm:resnet_of_nobody": "has no such network",
    }.items():
        with pytest.raises(ConfigError, match=said):
            built(name)


def test_what_a_backbone_does_not_allow_is_said_before_the_training(tmp_path, monkeypatch):
    (tmp_path / "own_backbones2.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)

    def said(backbone, ranks=ALONE, **settings):
        loaded = replace(config.load("cifar10-small"), network=replace(SMALL, backbone=backbone), **settings)
        return " ".join(limits.sentences(methods.build(loaded, 10).network, loaded, ranks))

    assert "takes whole batches" in said("timm:test_resnet", micro_batch=8)
    assert "as one piece" in said("timm:test_vit", recompute=True)
    assert said("timm:test_vit", micro_batch=8) == said("residual", micro_batch=8, recompute=True) == ""
    assert "dropout inside own_backbones2:dropping stays off" in said("own_backbones2:dropping")
    with pytest.raises(ConfigError, match="BatchNormAct2d, which ranks can't share"):
        said("timm:test_efficientnet", Ranks(count=2))
    dropping = built("own_backbones2:dropping")
    networks.set_training(dropping, freeze_batchnorm=False)
    assert not dropping.blocks[0][0].training and dropping.projector.training


def test_a_frozen_backbone_stays_as_it_is():
    network = built("residual", frozen=True)
    networks.set_training(network, freeze_batchnorm=False)
    before = {name: value.clone() for name, value in network.backbone_state().items()}
    images = torch.randn(8, 3, 32, 32)
    passes.forward(network, Passes(3))(images).projections.sum().backward()
    networks.recalibrate(network, [images])
    network.requires_grad_(True)
    assert all(torch.equal(value, before[name]) for name, value in network.backbone_state().items())
    assert all(
        p.grad is None and not p.requires_grad for p in (*network.stem.parameters(), *network.blocks.parameters())
    )
    assert network.projector[1].num_batches_tracked == 1 and network.projector[0].weight.grad is not None


@pytest.mark.parametrize("method", ["nncsl", "er", "gdumb", "foster", "ordisco"])
def test_the_backbone_learns_at_its_own_rate(method):
    loaded = config.load("digits", [{"method": method, "network": {"backbone_lr": 0.1, "width": 8}}])
    learner = methods.build(loaded, 10)
    task = config_task()
    (optimizer, *_) = methods.begin(learner, 0, learner.phases(task)[0], task)
    optim.set_rates([optimizer], 0.5)
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    network = learner.network
    assert rates[id(network.stem[0].weight)] == pytest.approx(0.1 * rates[id(network.projector[0].weight)])
    assert len(rates) == sum(p.requires_grad for p in network.parameters())


def config_task():
    import numpy as np

    from nncsl.data.tasks import Task

    ids = np.arange(8)
    return Task(0, (0, 1), ids, ids % 2, ids, (), 10, steps=1, remembered=8)


def test_a_wrong_factor_is_refused(capsys):
    assert cli.main(["train", "--set", "network.backbone_lr=0"]) == 2
    assert "network.backbone_lr=0.0: expected a number above 0" in capsys.readouterr().err
