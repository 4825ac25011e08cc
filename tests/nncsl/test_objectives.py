"""Every objective against an independent implementation: one sample at a time, in loops, in double precision."""

import math

import pytest
import torch
from torch.nn import functional as F

import kernels
from nncsl import objectives

TAU, SHARPENING, SMOOTHING = 0.1, 0.25, 0.1


# The naive implementation, from the definitions and with plain Python numbers.


def cosine(a, b):
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / (math.sqrt(sum(x * x for x in a)) * math.sqrt(sum(y * y for y in b)))


def naive_snn(query, supports, labels, classes):
    """Probabilities of one query; labels smoothed: on 1 - a + a/C, off a/C."""
    weights = [math.exp(cosine(query, support) / TAU) for support in supports]
    total = sum(weights)
    result = []
    for c in range(classes):
        smoothed = [(1 - SMOOTHING if label == c else 0) + SMOOTHING / classes for label in labels]
        result.append(sum(w / total * y for w, y in zip(weights, smoothed, strict=True)))
    return result


def naive_sharpen(p):
    powered = [x ** (1 / SHARPENING) for x in p]
    return [x / sum(powered) for x in powered]


def naive_step(views, supports, labels, classes):
    """L_SNN and L_MEM of views[v][n]: lists of embeddings; views 0 and 1 are large."""
    predictions = [[naive_snn(q, supports, labels, classes) for q in view] for view in views]
    images, losses, mean = len(views[0]), [], [0.0] * classes
    for n in range(images):
        first, second = ([0.0 if x < 1e-4 else x for x in naive_sharpen(predictions[large][n])] for large in (0, 1))
        both = [(a + b) / 2 for a, b in zip(first, second, strict=True)]
        for v, target in enumerate([second, first] + [both] * (len(views) - 2)):
            losses.append(-sum(t * math.log(p) for t, p in zip(target, predictions[v][n], strict=True)))
            for c, p in enumerate(naive_sharpen(predictions[v][n])):
                mean[c] += p / (images * len(views))
    return sum(losses) / len(losses), sum(p * math.log(p) for p in mean if p > 0)


@pytest.fixture
def scene():
    torch.manual_seed(0)
    views = torch.randn(4, 7, 16, dtype=torch.float64, requires_grad=True)
    supports = torch.randn(9, 16, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2])
    return views, supports, labels


def ours(views, supports, labels, classes=3):
    probabilities = kernels.snn(
        views.flatten(0, 1), supports, labels, num_classes=classes, temperature=TAU, smoothing=SMOOTHING
    ).unflatten(0, views.shape[:2])
    return objectives.snn_loss(probabilities, SHARPENING), objectives.mem_loss(probabilities, SHARPENING)


def test_snn_and_mem_equal_the_naive_loops(scene):
    snn, mem = ours(*scene)
    expected = naive_step(*(x.tolist() for x in scene), 3)
    assert (snn.item(), mem.item()) == pytest.approx(expected, rel=1e-10)


def test_gradients_reach_queries_and_supports_as_finite_differences_say(scene):
    """Targets count as constants, so the numeric derivative keeps them where they were."""
    views, supports, labels = scene
    probabilities = kernels.snn(
        views.flatten(0, 1), supports, labels, num_classes=3, temperature=TAU, smoothing=SMOOTHING
    ).unflatten(0, (4, 7))
    targets = objectives.view_targets(probabilities, SHARPENING)
    assert not targets.requires_grad
    sum(ours(*scene)).backward()

    def value():
        p = kernels.snn(views.flatten(0, 1), supports, labels, num_classes=3, temperature=TAU, smoothing=SMOOTHING)
        p = p.unflatten(0, (4, 7))
        return (objectives.cross_entropy(targets, p) + objectives.mem_loss(p, SHARPENING)).item()

    for tensor in (views, supports):
        flat, gradient = tensor.data.view(-1), tensor.grad.view(-1)
        for at in range(0, flat.numel(), 37):
            before = flat[at].item()
            flat[at] = before + 1e-6
            up = value()
            flat[at] = before - 1e-6
            down = value()
            flat[at] = before
            assert gradient[at].item() == pytest.approx((up - down) / 2e-6, rel=1e-4, abs=1e-8)


def test_large_views_are_each_others_targets():
    p = torch.tensor([[[0.9, 0.1]], [[0.2, 0.8]], [[0.5, 0.5]]], dtype=torch.float64)
    targets = objectives.view_targets(p, 0.5)
    first, second = [0.81 / 0.82, 0.01 / 0.82], [0.04 / 0.68, 0.64 / 0.68]
    assert targets[0, 0].tolist() == pytest.approx(second)
    assert targets[1, 0].tolist() == pytest.approx(first)
    assert targets[2, 0].tolist() == pytest.approx([(a + b) / 2 for a, b in zip(first, second, strict=True)])


def test_small_target_probabilities_count_as_zero():
    p = torch.tensor([[[0.95, 0.05]], [[0.85, 0.15]]])
    targets = objectives.view_targets(p, 0.25)
    assert targets[1, 0, 1] == 0.0  # (.05/.95)^4 is under 1e-4
    assert targets[0, 0, 1] > 1e-4  # (.15/.85)^4 is not


def test_mem_prefers_spread_predictions():
    """Minimizing L_MEM maximizes the entropy of the mean: spread is lower than collapsed."""
    spread = torch.eye(4).repeat(2, 1, 1).clamp(0.01, 0.97)
    collapsed = spread[:, :1].expand(-1, 4, -1)
    assert objectives.mem_loss(spread, 0.25) < objectives.mem_loss(collapsed, 0.25)
    assert objectives.mem_loss(spread, 0.25).item() == pytest.approx(-math.log(4), abs=1e-3)


def test_nnd_equals_the_naive_loops_and_leaves_the_teacher_alone():
    torch.manual_seed(1)
    queries, teacher_queries = torch.randn(2, 6, 16, dtype=torch.float64)
    supports, teacher_supports = torch.randn(2, 8, 16, dtype=torch.float64)
    labels = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
    leaves = [t.clone().requires_grad_() for t in (queries, supports, teacher_queries, teacher_supports)]
    loss = kernels.nnd_loss(*leaves, labels, num_classes=4, temperature=TAU, smoothing=SMOOTHING)
    loss.backward()
    expected = 0.0
    for n in range(6):
        student = naive_snn(queries[n].tolist(), supports.tolist(), labels.tolist(), 4)
        teacher = naive_snn(teacher_queries[n].tolist(), teacher_supports.tolist(), labels.tolist(), 4)
        expected -= sum(t * math.log(s) for t, s in zip(teacher, student, strict=True)) / 6
    assert loss.item() == pytest.approx(expected, rel=1e-10)
    assert leaves[0].grad is not None and leaves[1].grad is not None
    assert leaves[2].grad is None and leaves[3].grad is None


def test_kd_and_feature_losses_vanish_in_gradient_where_student_is_teacher():
    torch.manual_seed(2)
    logits = torch.randn(5, 4, requires_grad=True)
    objectives.kd_loss(logits, logits.detach().clone(), 2.0).backward()
    assert logits.grad.abs().max() < 1e-6
    h = F.normalize(torch.randn(5, 8), dim=-1)
    assert objectives.feature_loss(h, 3 * h) < 1e-12


def test_kd_by_hand():
    student, teacher = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0]])
    target = 1 / (1 + math.e)  # softmax of (0, 2) / 2
    q = math.exp(0.5) / (math.exp(0.5) + 1)
    expected = 4 * -(target * math.log(q) + (1 - target) * math.log(1 - q))
    assert objectives.kd_loss(student, teacher, 2.0).item() == pytest.approx(expected, rel=1e-5)


def test_scale_gradient_changes_nothing_but_the_gradient():
    x = torch.randn(3, requires_grad=True)
    y = objectives.scale_gradient(x, 0.005)
    assert torch.equal(x, y)
    y.sum().backward()
    assert torch.allclose(x.grad, torch.full((3,), 0.005))
