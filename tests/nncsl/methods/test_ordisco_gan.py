"""ORDisCo's generator and discriminator alone: shapes, norms, and what the discriminator holds on to."""

import numpy as np
import pytest
import torch

from nncsl.methods import ordisco_losses
from nncsl.methods.ordisco_gan import Discriminator, Generator


def test_what_matters_is_the_mean_of_squared_gradients_image_by_image():
    torch.manual_seed(0)
    judge = Discriminator(8, 1, 4, 3).double().eval()
    images, labels = torch.randn(4, 1, 8, 8, dtype=torch.float64), torch.tensor([0, 2, 2, 1])
    mean, whole = None, {id(p) for p in judge.parameters()}
    for image, label in zip(images, labels.tolist(), strict=True):
        judge.zero_grad()
        judge(image[None])[0, label].backward()
        squares = np.concatenate([p.grad.numpy().reshape(-1) ** 2 for p in judge.parameters()])
        mean = squares / 4 if mean is None else mean + squares / 4
    first = ordisco_losses.importance(judge, images, labels)
    assert first.numpy() == pytest.approx(mean / mean.mean(), rel=1e-9) and first.mean().item() == pytest.approx(1)
    assert len(whole) == 2 * 6 + 3  # of two blocks, both heads: raw weights and biases, each once

    weights = np.concatenate([p.detach().numpy().reshape(-1).copy() for p in judge.parameters()])
    judge.consolidate(images, labels, tasks=1)
    assert torch.equal(judge.importance, first) and np.array_equal(judge.anchor.numpy(), weights)
    second = ordisco_losses.importance(judge, images[:2], labels[:2])
    judge.consolidate(images[:2], labels[:2], tasks=2)
    third = ordisco_losses.importance(judge, images[1:], labels[1:])
    judge.consolidate(images[1:], labels[1:], tasks=3)
    assert torch.allclose(judge.importance, (first + second + third) / 3)


def test_nothing_is_held_in_task_1_nor_where_the_weights_were():
    torch.manual_seed(0)
    judge = Discriminator(8, 1, 4, 3)
    with torch.no_grad():
        for weights in judge.parameters():
            weights.add_(0.1)
    assert judge.drift().item() == 0  # moved, in task 1
    judge.eval().consolidate(torch.randn(3, 1, 8, 8), torch.tensor([0, 1, 2]), tasks=1)
    held = judge.drift()
    held.backward()
    assert held.item() == 0 and all((p.grad == 0).all() for p in judge.parameters())
    with torch.no_grad():
        for weights in judge.parameters():
            weights.add_(0.1)
    # The importance's mean is 1: all weights moved by .1 make .01 each.
    assert judge.drift().item() == pytest.approx(0.01 * len(judge.anchor), rel=1e-4)


@pytest.mark.parametrize(("size", "channels", "blocks"), [(8, 1, (1, 2)), (32, 3, (3, 4)), (16, 3, (2, 3))])
def test_both_players_have_the_right_shapes(size, channels, blocks):
    maker, judge = Generator(size, channels, 8, 5, 10), Discriminator(size, channels, 8, 10)
    labels = torch.tensor([0, 9, 3])
    images = maker(maker.noise(3, torch.Generator().manual_seed(0)), labels)
    assert images.shape == (3, channels, size, size) and images.abs().max() <= 1
    assert (len(maker.blocks), len(judge.blocks)) == blocks
    maps = judge.blocks(images)
    assert maps.shape == (3, 8, 2, 2)
    scores = judge(images)
    assert scores.shape == (3, 10)
    ordisco_losses.chosen(scores, labels).sum().backward()
    for player in (maker, judge):
        assert all(p.grad is not None and p.grad.shape == p.shape for p in player.parameters())
    # Every layer of the judge has norm 1, the class embedding too, once the estimate has settled.
    for _ in range(100):
        judge(images.detach())
    for layer in (*(m for m in judge.modules() if hasattr(m, "parametrizations")),):
        assert torch.linalg.matrix_norm(layer.weight.flatten(1), 2).item() == pytest.approx(1, abs=0.02)
