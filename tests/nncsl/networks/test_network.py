import subprocess
import sys

import pytest
import torch
from torch import nn

from nncsl import config, networks
from nncsl.data.torchvision_compat import torchvision
from nncsl.featurebank import fingerprint


def build(preset="digits", channels=3, classes=10, **changes):
    return networks.build(config.load(preset, [{"network": changes}]).network, channels, classes, seed=0)


@pytest.mark.parametrize(("preset", "size"), [("cifar10", 32), ("cifar10", 18), ("imagenet100", 96)])
def test_resnet18_shapes(preset, size):
    network = build(preset, classes=100)
    outputs = network(torch.randn(2, 3, size, size))
    assert outputs.features.shape == (2, 512) and outputs.projections.shape == (2, 128)
    assert network.head(outputs.features).shape == (2, 100)


@pytest.mark.parametrize(("preset", "side"), [("cifar10", 34), ("cifar100", 34), ("cifar10-small", 16), ("digits", 32)])
def test_the_stems_maps(preset, side):
    """The authors pad the full-size CIFAR stem by 2; small networks and digits are padded by 1."""
    network = build(preset)
    assert network.stem[0](torch.randn(1, 3, 32, 32)).shape[2:] == (side, side)


def test_backbone_equals_torchvisions_resnet18():
    """The same weights give the same features: what we call ResNet-18 is one."""
    ours, theirs = build("imagenet100"), torchvision.models.resnet18()
    theirs.fc = nn.Identity()
    own = [v for name, v in ours.state_dict().items() if name.startswith(("stem.", "blocks."))]
    assert [v.shape for v in own] == [v.shape for v in theirs.state_dict().values()]
    theirs.load_state_dict(dict(zip(theirs.state_dict(), own, strict=True)))
    images = torch.randn(2, 3, 64, 64)
    ours.eval(), theirs.eval()
    assert torch.allclose(ours(images).features, theirs(images), atol=1e-4)


def test_pooling_before_the_relu_changes_no_bit():
    """ResNet's order is convolution, BatchNorm, ReLU, pool; ours is cheaper, with the same values and gradients."""
    ours, theirs = build("cifar10-small"), build("cifar10-small")
    convolution, norm, pool, relu = theirs.stem
    assert isinstance(pool, nn.MaxPool2d) and isinstance(relu, nn.ReLU)
    theirs.stem = nn.Sequential(convolution, norm, relu, pool)
    images, weights = torch.randn(16, 3, 32, 32), torch.randn(16, 128)
    for network in (ours, theirs):
        (network(images).projections * weights).sum().backward()
    assert torch.equal(ours(images).projections, theirs(images).projections)
    for name, parameter in ours.stem.named_parameters():
        assert torch.equal(parameter.grad, theirs.stem.get_parameter(name).grad), name


def test_initialization_depends_on_the_seed_alone():
    torch.manual_seed(123)
    before = torch.get_rng_state()
    first = fingerprint(build().state_dict())
    torch.randn(7)
    assert fingerprint(build().state_dict()) == first
    torch.manual_seed(123)
    build()
    assert torch.equal(torch.get_rng_state(), before)
    other = networks.build(config.load("digits").network, 3, 10, seed=1)
    assert fingerprint(other.state_dict()) != first


def test_recalibrated_statistics_are_those_of_the_images():
    """Of a first layer exactly, by hand; modes, momentum and weights stay; twice is once."""
    network = build()
    networks.set_training(network, freeze_batchnorm=True)
    weights = {name: p.detach().clone() for name, p in network.named_parameters()}
    images = 3 * torch.randn(12, 3, 8, 8) + 1
    for _ in range(2):
        networks.recalibrate(network, images.split(4))
    first = network.stem[0](images)
    norm = network.stem[1]
    assert torch.allclose(norm.running_mean, first.mean(dim=(0, 2, 3)), atol=1e-5)
    variances = torch.stack([part.var(dim=(0, 2, 3)) for part in first.split(4)])
    assert torch.allclose(norm.running_var, variances.mean(dim=0), rtol=1e-4)
    assert not norm.training and norm.momentum == 0.1 and norm.num_batches_tracked == 3
    assert all(torch.equal(p, weights[name]) for name, p in network.named_parameters())


def test_unseen_classes_can_not_win():
    logits = torch.tensor([[1.0, 9.0, 2.0]])
    seen = torch.tensor([True, False, True])
    assert networks.mask_unseen(logits, seen).argmax().item() == 2
    assert torch.nn.functional.cross_entropy(networks.mask_unseen(logits, seen), torch.tensor([0])).isfinite()


def test_frozen_batchnorm_keeps_statistics_and_trains_affine():
    network = build()
    networks.set_training(network, freeze_batchnorm=True)
    before = {k: v.clone() for k, v in network.state_dict().items() if "running" in k}
    images = torch.randn(6, 3, 8, 8)
    together = network(images).projections
    alone = torch.cat([network(image[None]).projections for image in images])
    assert torch.allclose(together, alone, atol=1e-5)  # images are independent of their batch
    together.sum().backward()
    assert all(torch.equal(v, network.state_dict()[k]) for k, v in before.items())
    assert network.stem[1].weight.grad.abs().sum() > 0
    networks.set_training(network, freeze_batchnorm=False)
    network(images)
    assert not all(torch.equal(v, network.state_dict()[k]) for k, v in before.items())


@pytest.mark.parametrize("width", [4, 8, 9])
def test_narrow_networks_survive_a_backward_pass_on_photos(width):
    """In a process of its own: torch's strided 1x1 convolution ends it in some layouts."""
    code = f"""
import torch
from nncsl import networks
from nncsl.config import NetworkConfig
network = networks.build(NetworkConfig(stem="imagenet", width={width}, blocks=(1, 1), hidden=16), 3, 10, seed=0)
network.head(network(torch.randn(30, 3, 224, 224)).features).sum().backward()
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
