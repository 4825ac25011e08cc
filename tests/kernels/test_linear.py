"""The cross-entropy of a linear head: one launch for the value and one for the gradient, against plain torch."""

import pytest
import torch
from torch import Tensor, nn

from nncsl import objectives
from nncsl.kernels import linear

BEFORE = 7  # rows of features that have no labels


def scene(
    rows: int, classes: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, nn.Linear, Tensor, Tensor]:
    """Features [BEFORE + rows, 24], a layer, labels [rows], and every third class left out."""
    rng = torch.Generator().manual_seed(rows)
    features = torch.randn(BEFORE + rows, 24, generator=rng).to(device, dtype)
    layer = nn.Linear(24, classes).to(device, dtype)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(classes, 24, generator=rng))
        layer.bias.copy_(torch.randn(classes, generator=rng))
    left_out = torch.arange(classes, device=device) % 3 == 2
    kept = torch.nonzero(~left_out).flatten().cpu()
    labels = kept[torch.randint(len(kept), (rows,), generator=rng)].to(device)
    return features.requires_grad_(), layer, labels, left_out


def results(loss: Tensor, features: Tensor, layer: nn.Linear, upstream: float) -> list[Tensor]:
    """The loss and all gradients, in fp64."""
    grads = torch.autograd.grad(loss, [features, layer.weight, layer.bias], torch.full_like(loss, upstream))
    return [x.detach().double() for x in (loss, *grads)]


def plain(dtype: torch.dtype, given: tuple[Tensor, nn.Linear, Tensor, Tensor], upstream: float) -> list[Tensor]:
    """The same by plain torch in another precision."""
    features, layer, labels, left_out = given
    copy = nn.Linear(24, layer.out_features).to(features.device, dtype)
    copy.load_state_dict(layer.state_dict())
    features = features.detach().to(dtype).requires_grad_()
    logits = copy(objectives.scale_gradient(features[BEFORE:], 0.005)).masked_fill(left_out, float("-inf"))
    return results(nn.functional.cross_entropy(logits, labels), features, copy, upstream)


@pytest.mark.parametrize(("rows", "classes", "upstream"), [(1, 2, 1.0), (10, 4, 1.0), (70, 100, 1024.0)])
def test_value_and_gradients_are_plain_torchs(
    rows: int, classes: int, upstream: float, triton_device: torch.device
) -> None:
    given = scene(rows, classes, torch.float32, triton_device)
    features, layer, labels, left_out = given
    found = results(linear.cross_entropy(features, layer, labels, left_out, 0.005), features, layer, upstream)
    exact, eager = plain(torch.float64, given, upstream), plain(torch.float32, given, upstream)
    for ours, theirs, true in zip(found, eager, exact, strict=True):
        rounding = 2**-23 * true.abs().max()
        assert (ours - true).abs().max() <= 2 * (theirs - true).abs().max() + 2 * rounding
    assert not found[1][:BEFORE].any() and found[1][BEFORE:].any()
    again = results(linear.cross_entropy(features, layer, labels, left_out, 0.005), features, layer, upstream)
    assert all(torch.equal(one, two) for one, two in zip(found, again, strict=True))


def test_half_precision(triton_device: torch.device) -> None:
    given = scene(10, 4, torch.float16, triton_device)
    features, layer, labels, left_out = given
    found = results(linear.cross_entropy(features, layer, labels, left_out, 0.005), features, layer, 1.0)
    for ours, true in zip(found, plain(torch.float64, given, 1.0), strict=True):
        assert (ours - true).abs().max() <= 2**-8 * true.abs().max()


def test_a_label_that_is_no_class_is_seen_and_features_need_no_gradient(triton_device: torch.device) -> None:
    features, layer, labels, left_out = scene(5, 4, torch.float32, triton_device)
    assert linear.cross_entropy(features, layer, labels + 4, left_out).isnan()
    linear.cross_entropy(features.detach(), layer, labels, left_out).backward()
    assert features.grad is None and layer.weight.grad is not None


def test_a_cpu_takes_plain_torch(triton_device: torch.device) -> None:
    features, layer, labels, left_out = scene(5, 4, torch.float32, torch.device("cpu"))
    assert not linear.takes(features, labels, 4)
    loss = objectives.head_loss(features, layer, labels, left_out, 0.005)
    expected = plain(torch.float32, (features, layer, labels, left_out), 1.0)
    for ours, theirs in zip(results(loss, features, layer, 1.0), expected, strict=True):
        assert torch.equal(ours, theirs)
