"""What X-DER computes of slices of logits, against loops over numbers."""

import math

import numpy as np
import pytest
import torch

from nncsl.methods import slices


def naive_contrast(vectors, labels, temperature):
    """The supervised contrastive loss of one slice, [n][k]."""
    unit = [[x / math.sqrt(sum(y * y for y in row)) for x in row] for row in vectors]
    n, total = len(unit), 0.0
    for i in range(n):
        weight = [math.exp(sum(a * b for a, b in zip(unit[i], other, strict=True)) / temperature) for other in unit]
        others = sum(weight[j] for j in range(n) if j != i)
        positives = [j for j in range(n) if j != i and labels[j] == labels[i]]
        total -= sum(math.log(weight[j] / others) for j in positives) / len(positives)
    return total / n


def naive_distance(vectors, stored):
    """The squared Frobenius distance of two matrices of shares over n^2, for one slice and view, [n][k] each."""

    def shares(rows):
        products = [[sum(a * b for a, b in zip(x, y, strict=True)) for y in rows] for x in rows]
        return [[p / sum(abs(q) for q in row) for p in row] for row in products]

    n = len(vectors)
    first, second = shares(vectors), shares(stored)
    return sum((first[i][j] - second[i][j]) ** 2 for i in range(n) for j in range(n)) / n**2


def naive_mean_of_positive(values):
    positive = [value for value in values if value > 0]
    return sum(positive) / len(positive) if positive else 0.0


def test_the_pure_functions_by_their_formulas():
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(3, 12, 4, generator=generator, dtype=torch.float64)
    stored = torch.randn(3, 12, 4, generator=generator, dtype=torch.float64)
    labels = torch.arange(12) % 5
    expected = [naive_contrast(part, labels.tolist(), 0.7) for part in vectors.tolist()]
    assert slices.supervised_contrast(vectors, labels, 0.7).item() == pytest.approx(np.mean(expected), rel=1e-12)
    expected = [naive_distance(*pair) for pair in zip(vectors.tolist(), stored.tolist(), strict=True)]
    assert slices.distance_loss(vectors, stored).item() == pytest.approx(np.mean(expected), rel=1e-12)
    assert slices.distance_loss(vectors, 3 * vectors).item() == pytest.approx(0, abs=1e-20)

    logits = torch.randn(9, 6, generator=generator, dtype=torch.float64)
    own = torch.tensor([[c // 2 == i % 2 for c in range(6)] for i in range(9)])
    found = slices.future_excess(logits, own, torch.tensor([4, 5]), 0.3)
    for i, row in enumerate(logits.tolist()):
        start = 2 * (i % 2)
        assert found[i].item() == pytest.approx(max(row[4:]) + 0.3 - max(row[start : start + 2]), abs=1e-12)
    assert slices.mean_of_positive(found).item() == pytest.approx(naive_mean_of_positive(found.tolist()), rel=1e-12)
    assert slices.mean_of_positive(-found.abs()) == 0

    p = [[math.exp(x) / sum(map(math.exp, row)) for x in row] for row in logits.tolist()]
    expected = [max(row[:4]) + 0.7 - max(row[4:]) for row in p]
    assert slices.past_excess(logits, 4, 0.7).tolist() == pytest.approx(expected, abs=1e-12)


def test_past_probabilities_have_no_gradient_of_their_own():
    """Only the present maximum moves: the gradient is that of its negative."""
    logits = torch.randn(1, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    slices.past_excess(logits, 2, 0.3).sum().backward()
    other = logits.detach().requires_grad_()
    (-other.softmax(dim=1)[:, 2:].max()).backward()
    assert torch.equal(logits.grad, other.grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_scaled_maximum_is_exact(dtype):
    logits = torch.randn(500, 6, generator=torch.Generator().manual_seed(0), dtype=dtype) * 3
    own = torch.randn(500, generator=torch.Generator().manual_seed(1), dtype=dtype) * 2
    found, largest = slices.shrunk(logits, own, 0.85), logits.max(dim=1).values
    scaled = (largest > own) & (own > 0)
    assert 50 < scaled.sum() < 450
    assert torch.equal(found[~scaled], logits[~scaled])
    assert torch.equal(found[scaled].max(dim=1).values, 0.85 * own[scaled])
    torch.testing.assert_close(found[scaled], logits[scaled] * (0.85 * own / largest)[scaled, None])
