import pytest
import torch
from torch import nn

from nncsl import config, networks, optim


def network():
    return networks.build(config.load("digits").network, channels=1, num_classes=10, seed=0)


@pytest.mark.parametrize("trust", [0.001, 0.02])
def test_exclusions_and_the_heads_own_rate(trust):
    """Weights adapt and decay; biases and all normalization parameters, the shortcut's too, do neither.

    The head adapts as a whole and does not decay.
    """
    net, c = network(), config.load("cifar10", [{"lars_trust": trust}])
    names = {id(p): name for name, p in net.named_parameters()}
    norms = {
        f"{n}.{k}"
        for n, m in net.named_modules()
        if isinstance(m, nn.modules.batchnorm._BatchNorm)
        for k in ("weight", "bias")
    }
    seen = {}
    for group in optim.build(net, c).param_groups:
        for p in group["params"]:
            seen[names[id(p)]] = (group["trust"], group["weight_decay"], group["peak"])
    assert set(seen) == set(names.values()) and any("shortcut" in name for name in norms)
    for name, found in seen.items():
        if name.startswith("head."):
            assert found == (trust, 0, c.head_lr), name
        elif name in norms or name.endswith("bias"):
            assert found == (0, 0, c.lr_peak), name
        else:
            assert found == (trust, 1e-5, c.lr_peak), name


def test_the_heads_bias_takes_small_steps_under_lars():
    """A hundred steps of one gradient: with plain steps the bias would move by head_lr times it each time."""
    net, c = network(), config.load("cifar10")
    optimizer, before = optim.build(net, c), net.head.bias.detach().clone()
    optim.set_rates([optimizer], 1.0)
    for _ in range(100):
        for p in net.head.parameters():
            p.grad = torch.full_like(p, 1.0)
        optimizer.step()
    moved = (net.head.bias - before).norm().item()
    assert 0 < moved < 0.3 * before.norm().item()


def test_lars_step_by_hand():
    w = nn.Parameter(torch.tensor([[3.0, 4.0]]))
    optimizer = optim.Lars([{"params": [w], "trust": 0.001, "weight_decay": 0.1, "lr": 2.0}], momentum=0.9)
    velocity, expected = torch.zeros(1, 2), w.detach().clone()
    for gradient in ([[1.0, 0.0]], [[0.0, 2.0]]):
        g = torch.tensor(gradient)
        w.grad = g.clone()
        optimizer.step()
        ratio = 0.001 * expected.norm() / (g.norm() + 0.1 * expected.norm() + 1e-8)
        velocity = 0.9 * velocity + ratio * (g + 0.1 * expected)
        expected = expected - 2.0 * velocity
        assert torch.allclose(w, expected, atol=1e-6)


def test_without_trust_it_is_torchs_sgd():
    torch.manual_seed(0)
    ours, theirs = nn.Parameter(torch.randn(5, 3)), nn.Parameter(torch.zeros(5, 3))
    theirs.data.copy_(ours.data)
    a = optim.Lars([{"params": [ours], "weight_decay": 0.01, "lr": 0.1}], momentum=0.9)
    b = torch.optim.SGD([theirs], lr=0.1, momentum=0.9, weight_decay=0.01)
    for _ in range(5):
        ours.grad = torch.randn(5, 3)
        theirs.grad = ours.grad.clone()
        a.step()
        b.step()
    assert torch.allclose(ours, theirs, atol=1e-6)


def test_rates_are_parts_of_each_groups_peak():
    c = config.load("cifar10")
    ours, plain = optim.build(network(), c), torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.5)
    for factor in (0.2, 1.0, 0.3):  # the peak is remembered, whatever the rate was before
        assert optim.set_rates([ours, plain], factor) == pytest.approx(0.4 * factor)
        assert [group["lr"] for group in ours.param_groups] == pytest.approx([0.4 * factor] * 2 + [0.12 * factor])
        assert plain.param_groups[0]["lr"] == pytest.approx(0.5 * factor)
