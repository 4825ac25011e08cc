"""ORDisCo's terms from their formulas, number by number, and when each of them counts."""

import math

import numpy as np
import pytest
import torch

from nncsl.methods import ordisco_losses
from nncsl.methods.ordisco import ORDisCo


def softmax(row):
    weights = [math.exp(value) for value in row]
    return [weight / sum(weights) for weight in weights]


def naive_cross_entropy(logits, labels):
    return -sum(math.log(softmax(row)[y]) for row, y in zip(logits.tolist(), labels.tolist(), strict=True)) / len(
        labels
    )


def naive_consistency(logits, others, seen):
    squares = 0.0
    for row, other in zip(logits.tolist(), others.tolist(), strict=True):
        p, q = softmax([row[c] for c in seen]), softmax([other[c] for c in seen])
        squares += sum((a - b) ** 2 for a, b in zip(p, q, strict=True)) / len(seen)
    return squares / len(logits)


def naive_hinge(real, labels, made, classes, doubted, guesses, a):
    """All scores [n, C]; from the formula, number by number."""
    true = sum(max(0, 1 - real[i][y]) for i, y in enumerate(labels)) / len(labels)
    false = sum(max(0, 1 + made[i][y]) for i, y in enumerate(classes)) / len(classes)
    pairs = [(p, s) for row, scores in zip(guesses, doubted, strict=True) for p, s in zip(row, scores, strict=True)]
    return true + a * false + (1 - a) * sum(p * max(0, 1 + s) for p, s in pairs) / len(doubted)


def test_with_generated_images_alone_it_is_a_conditional_hinge_gan():
    scores = torch.randn(3, 8, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    real, made, doubted = scores[0, :, 0], scores[1, :, 0], scores[2]
    found = ordisco_losses.hinge_loss(real, made, doubted, doubted.softmax(dim=1), 1.0)
    gan = np.maximum(0, 1 - real.numpy()).mean() + np.maximum(0, 1 + made.numpy()).mean()
    assert found.item() == pytest.approx(gan, rel=1e-12)
    assert ordisco_losses.hinge_loss(real, made, doubted, doubted.softmax(dim=1), 0.5).item() != pytest.approx(gan)


def test_ramps_are_parts_of_the_whole_run():
    own = ORDisCo.Settings()
    for step in range(0, 240_001, 2_500):
        now = step / 240_000
        consistency = 50 * math.exp(-5 * (1 - step / 40_000) ** 2) if step < 40_000 else 50
        rising = (
            math.exp(-5 * (1 - (step - 50_000) / 20_000) ** 2) if 50_000 <= step < 70_000 else float(step >= 70_000)
        )
        assert own.consistency * ordisco_losses.ramp(now, 0, own.ramp) == pytest.approx(consistency)
        assert ordisco_losses.ramp(now, *own.replay) == pytest.approx(rising)
    assert own.alone * 240_000 == pytest.approx(20_000)
