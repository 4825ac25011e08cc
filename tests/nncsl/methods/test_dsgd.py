"""DSGD: walks against a loop over their steps, what the loss does not see, and who is asked."""

import math

import pytest
import torch

from nncsl.errors import ConfigError
from nncsl.methods.dsgd import walk_ends, walk_loss
from tests.nncsl.scenes import SecondTask


def naive_ends(rows, temperature, steps, restart):
    """The same by its definition: probabilities of every walk, one step and one place at a time."""
    count = len(rows)
    cosines = [[float(torch.dot(a, b) / (a.norm() * b.norm())) for b in rows] for a in rows]
    weights = [[math.exp(cosines[i][j] / temperature) * (i != j) for j in range(count)] for i in range(count)]
    onward = [[weight / sum(row) for weight in row] for row in weights]
    ends = [[float(i == j) for j in range(count)] for i in range(count)]
    for _ in range(steps):
        moved = [[sum(ends[i][k] * onward[k][j] for k in range(count)) for j in range(count)] for i in range(count)]
        ends = [[restart * (i == j) + (1 - restart) * moved[i][j] for j in range(count)] for i in range(count)]
    return ends


@pytest.fixture
def pair():
    """Features of a student and of a teacher: fp64 [7, 5]."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, 7, 5, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(("steps", "restart"), [(1, 0.0), (3, 0.2), (6, 0.5)])
def test_the_loss_is_that_of_the_definition(pair, steps, restart):
    student, teacher = pair
    found, wanted = (naive_ends(rows, 0.3, steps, restart) for rows in (student, teacher))
    assert torch.allclose(walk_ends(student, 0.3, steps, restart), torch.tensor(found, dtype=torch.float64))
    terms = [
        t * math.log(t / s)
        for rows in zip(wanted, found, strict=True)
        for t, s in zip(*rows, strict=True)
        if t > 0  # with one step nobody is at home any more
    ]
    assert walk_loss(student, teacher, 0.3, steps, restart).item() == pytest.approx(sum(terms) / 7, rel=1e-12)


def test_gradients_are_those_of_the_loss_and_the_teacher_gets_none(pair):
    student, teacher = pair.clone().requires_grad_(True).unbind()
    assert torch.autograd.gradcheck(lambda x: walk_loss(x, teacher.detach(), 0.3, 3, 0.2), student)
    (gradient,) = torch.autograd.grad(walk_loss(student, teacher, 0.3, 3, 0.2), teacher, allow_unused=True)
    assert gradient is None


def test_it_sees_structure_alone(pair):
    """Turned, scaled and reordered features have the same walks; other features don't."""
    student, teacher = pair
    turn, _ = torch.linalg.qr(torch.randn(5, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64))
    loss, mixed = walk_loss(student, teacher, 0.3, 3, 0.2), torch.tensor([3, 0, 6, 1, 5, 2, 4])
    assert torch.allclose(walk_loss(student @ turn * 4, teacher, 0.3, 3, 0.2), loss)
    assert torch.allclose(walk_loss(student[mixed], teacher[mixed], 0.3, 3, 0.2), loss)
    assert walk_loss(teacher @ turn, teacher, 0.3, 3, 0.2).item() == pytest.approx(0, abs=1e-12)
    assert loss > 0.01


def test_far_images_and_half_precision_stay_finite():
    """At a low temperature some places are out of reach: no infinite logarithm, no gradient that is not a number."""
    rows = torch.eye(6).repeat(2, 1).half().requires_grad_(True)
    loss = walk_loss(rows, -torch.eye(6).repeat(2, 1).flip(0), 0.001, 3, 0.2)
    (gradient,) = torch.autograd.grad(loss, rows)
    assert loss.dtype == torch.float32 and loss.isfinite() and gradient.isfinite().all()


@pytest.mark.parametrize("method", ["dsgd", "pshd"])
def test_only_remembered_images_are_asked_about(small, make_run, method):
    scene = SecondTask(small(f"method={method}"), make_run)
    (asked,) = scene.asks().values()
    assert asked.role == "replay" and set(asked.ids) == set(scene.state.memory.ids)


@pytest.mark.parametrize("method", ["dsgd", "pshd"])
def test_the_bank_says_what_a_copied_network_says(small, make_run, method):
    """In fp32 both give the same loss, and its gradient reaches the network."""
    scene = SecondTask(small(f"method={method}", "bank_codec=fp32", "bank_views=1"), make_run)
    with torch.no_grad():
        bank, copied = scene.teacher("features"), scene.teacher("model")
        weight = scene.method.network.projector[0].weight  # the student has moved on
        weight += torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
    pool = bank.pool(0)
    found = [scene.losses(scene.method, teacher, pool=pool).parts["nnd"] for teacher in (bank, copied)]
    bank.close()
    assert found[0].item() > 1e-4 and found[0].item() == pytest.approx(found[1].item(), rel=1e-4)
    found[0].backward()
    assert scene.method.network.stem[0].weight.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("method=dsgd", "own.steps=0"), "own.steps=0: expected 1 or more"),
        (("method=dsgd", "own.restart=1.0"), "own.restart=1.0: expected a number from 0"),
        (("method=pshd", "distillation=kd"), "distillation='kd': pshd has its own"),
    ],
)
def test_what_makes_no_sense_is_refused(small, make_run, settings, message):
    with pytest.raises(ConfigError, match=message):
        SecondTask(small(*settings), make_run)
