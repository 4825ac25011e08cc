"""Every objective against an independent implementation: one sample at a time, in loops, in double precision."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from nncsl import config, kernels, networks, objectives
from nncsl.batches import Group, ViewKeys
from nncsl.data.tasks import Task
from nncsl.methods.base import Step
from nncsl.methods.nncsl import NNCSL
from nncsl.networks import Outputs
from nncsl.steps.transfer import ship

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


def naive_cut(target):
    return [0.0 if x < 1e-4 else x for x in target]


def naive_step(views, supports, labels, classes):
    """L_SNN and L_MEM of views[v][n]: lists of embeddings; views 0 and 1 are large."""
    predictions = [[naive_snn(q, supports, labels, classes) for q in view] for view in views]
    images, losses, mean = len(views[0]), [], [0.0] * classes
    for n in range(images):
        first, second = (naive_sharpen(predictions[large][n]) for large in (0, 1))
        both = [(a + b) / 2 for a, b in zip(first, second, strict=True)]
        for v, target in enumerate(map(naive_cut, [second, first] + [both] * (len(views) - 2))):
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


def ours(views, supports, labels, classes=3, backend="auto"):
    return kernels.snn_loss(
        views.flatten(0, 1),
        supports,
        labels,
        small_views=len(views) - 2,
        sharpening=SHARPENING,
        num_classes=classes,
        temperature=TAU,
        smoothing=SMOOTHING,
        backend=backend,
    )


@pytest.mark.parametrize("small_views", [0, 1, 2])
def test_snn_and_mem_equal_the_naive_loops(scene, small_views):
    views, supports, labels = scene
    views = views[: 2 + small_views]
    snn, mem, _ = ours(views, supports, labels)
    expected = naive_step(views.tolist(), supports.tolist(), labels.tolist(), 3)
    assert (snn.item(), mem.item()) == pytest.approx(expected, rel=1e-10)


def test_confident_predictions_cut_small_targets_to_zero(scene):
    """Views on top of their supports: the other classes' targets are under the threshold, and count as zero."""
    _, supports, labels = scene
    views = supports.detach()[None, ::2].repeat(4, 1, 1) + 0.01
    sharp = naive_sharpen(naive_snn(views[0, 0].tolist(), supports.tolist(), labels.tolist(), 3))
    assert 0 < min(sharp) < 1e-4
    expected = naive_step(views.tolist(), supports.tolist(), labels.tolist(), 3)
    assert tuple(x.item() for x in ours(views, supports, labels)[:2]) == pytest.approx(expected, rel=1e-10)


def test_a_mean_target_is_cut_after_the_mean(scene):
    """One large view is surer than the other: what counts is whether their mean is under the threshold."""
    _, supports, labels = scene
    here, there = supports.detach()[0], supports.detach()[3]
    views = torch.stack([here, here + 0.8 * there, here, here])[:, None]
    sure, unsure = (
        naive_sharpen(naive_snn(view.tolist(), supports.tolist(), labels.tolist(), 3)) for view in views[:2, 0]
    )
    assert any(a < 1e-4 <= (a + b) / 2 for a, b in zip(sure, unsure, strict=True))
    expected = naive_step(views.tolist(), supports.tolist(), labels.tolist(), 3)
    for backend in ("reference", "blockwise"):
        found = ours(views, supports, labels, backend=backend)
        assert tuple(x.item() for x in found[:2]) == pytest.approx(expected, rel=1e-10)


def test_large_views_are_each_others_targets_and_small_ones_have_none(scene):
    """Targets are constants: moving only the first large view's class moves the loss of the others towards it."""
    _, supports, labels = scene
    at = {c: supports.detach()[labels == c][0] for c in range(3)}
    agreeing = torch.stack([at[0], at[0], at[0], at[0]])[:, None]
    disagreeing = torch.stack([at[0], at[1], at[0], at[0]])[:, None]
    assert ours(agreeing, supports, labels)[0] < ours(disagreeing, supports, labels)[0]
    small_astray = torch.stack([at[0], at[0], at[0], at[2]])[:, None]
    astray, agreed = ours(small_astray, supports, labels)[0], ours(agreeing, supports, labels)[0]
    # One of four views is wrong; were it a target too, the large views' losses would rise with it.
    wrong = naive_snn(at[2].tolist(), supports.tolist(), labels.tolist(), 3)
    right = naive_snn(at[0].tolist(), supports.tolist(), labels.tolist(), 3)
    assert (astray - agreed).item() == pytest.approx((math.log(right[0]) - math.log(wrong[0])) / 4, rel=0.05)


def test_mem_prefers_spread_predictions(scene):
    """Minimizing L_MEM maximizes the entropy of the mean: spread is lower than collapsed."""
    _, supports, labels = scene
    spread = supports.detach()[None].repeat(4, 1, 1)
    collapsed = supports.detach()[labels == 0][:1].expand(4, 9, -1)
    assert ours(spread, supports, labels)[1] < ours(collapsed, supports, labels)[1] - 0.5
    assert ours(spread, supports, labels)[1].item() == pytest.approx(-math.log(3), abs=0.01)


def test_gradients_reach_queries_and_supports(scene):
    views, supports, _ = scene
    sum(ours(*scene)[:2]).backward()
    assert views.grad.abs().min() > 0 and supports.grad.abs().min() > 0


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


def test_nncsl_picks_supports_and_classes_as_the_naive_loops_do():
    """Current supports for L_SNN and L_MEM, old ones for L_NND, with classes in an order of their own."""
    torch.manual_seed(3)
    current, old = (5, 0), (7, 2)
    labels = torch.tensor([7, 2, 7, 2, 2, 5, 0, 5, 0])  # old ones stand first
    is_old = np.isin(labels.numpy(), old)
    loaded = config.load("cifar10", [{"network": {"width": 2, "blocks": [1, 1, 1], "hidden": 4, "projection": 16}}])
    method = NNCSL(networks.build(loaded.network, 3, 10, seed=0).double(), loaded, None)
    queries, supports = torch.randn(4, 6, 16, dtype=torch.float64), torch.randn(9, 16, dtype=torch.float64)
    teacher_queries, teacher_supports = torch.randn(24, 16).double(), torch.randn(int(is_old.sum()), 16).double()
    # Pixels are numbers of rows here, so that the network's outputs can be chosen.
    projections = torch.cat([queries.flatten(0, 1), supports])
    features = torch.randn(33, 8, dtype=torch.float64)
    pixels = {"large": torch.arange(12), "small": torch.arange(12, 24), "supports": torch.arange(24, 33)}
    nothing = np.zeros(12, dtype=np.int64)
    batch = {kind: Group(ViewKeys(kind, nothing, nothing), None, nothing.astype(bool)) for kind in ("large", "small")}
    batch["supports"] = Group(ViewKeys("support", nothing[:9], nothing[:9]), labels, is_old)
    task = Task(1, current, nothing[:0], nothing[:0], nothing[:0], old, num_classes=10)
    targets = {"large": teacher_queries[:12], "small": teacher_queries[12:], "supports": teacher_supports}

    def outputs(rows):
        return Outputs(features[rows], projections[rows])

    notes = ship(method.notes(batch, task), torch.device("cpu"))
    losses = method.losses(Step(batch, pixels, targets, task, None, None, 0, outputs, None, notes=notes))
    logits = method.network.head(features[24:])[:, list(old + current)]

    names = {"current": current, "old": old}
    chosen = {"current": ~is_old, "old": is_old}
    voters = {group: supports[torch.from_numpy(rows)].tolist() for group, rows in chosen.items()}
    numbers = {g: [names[g].index(c) for c in labels[torch.from_numpy(rows)].tolist()] for g, rows in chosen.items()}
    snn, mem = naive_step(queries.tolist(), voters["current"], numbers["current"], 2)
    nnd = 0.0
    for student_query, teacher_query in zip(queries.flatten(0, 1).tolist(), teacher_queries.tolist(), strict=True):
        w = naive_snn(student_query, voters["old"], numbers["old"], 2)
        w_teacher = naive_snn(teacher_query, teacher_supports.tolist(), numbers["old"], 2)
        nnd -= sum(t * math.log(p) for t, p in zip(w_teacher, w, strict=True)) / 24
    lin = -sum(logits[k].log_softmax(0)[(old + current).index(c)].item() for k, c in enumerate(labels.tolist())) / 9
    found = {name: part.item() for name, part in losses.parts.items()}
    assert found == pytest.approx({"snn": snn, "mem": mem, "lin": lin, "nnd": nnd}, rel=1e-6)
    assert losses.total.item() == pytest.approx(snn + mem + lin + 0.2 * nnd, rel=1e-6)
    guesses = [losses.among[place] for place in losses.guesses["large"].tolist()]
    for v in range(2):  # the record names classes, not positions
        for n in range(6):
            votes = naive_snn(queries[v, n].tolist(), voters["current"], numbers["current"], 2)
            assert guesses[6 * v + n] == current[votes.index(max(votes))]
