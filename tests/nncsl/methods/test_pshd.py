"""PsHD: trees against Kruskal's algorithm, the loss against a loop, and what it does not see."""

import itertools

import pytest
import torch

from nncsl.methods.pshd import persistence_loss, spanning_tree


def kruskal(distances):
    """The edges (i < j) of the minimum spanning tree, shortest first, equal ones in order of their pairs."""
    groups = [{i} for i in range(len(distances))]
    edges = []
    for i, j in sorted(itertools.combinations(range(len(distances)), 2), key=lambda pair: float(distances[pair])):
        mine, theirs = (next(group for group in groups if node in group) for node in (i, j))
        if mine is not theirs:
            groups = [group for group in groups if group is not mine and group is not theirs] + [mine | theirs]
            edges.append((i, j))
    return edges


def naive_loss(student, teacher):
    def length(rows, i, j):
        return 1 - torch.dot(rows[i], rows[j]) / (rows[i].norm() * rows[j].norm())

    count = len(teacher)
    distances = torch.tensor([[length(teacher, i, j) for j in range(count)] for i in range(count)])
    tree = kruskal(distances)
    return sum((length(student, *edge) - length(teacher, *edge)) ** 2 for edge in tree) / len(tree)


@pytest.fixture
def pair():
    """Features of a student and of a teacher: fp64 [9, 5]."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, 9, 5, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("count", [2, 3, 4, 7, 16, 33])
@pytest.mark.parametrize("levels", [0, 1, 2, 5])
def test_the_tree_is_kruskals(count, levels):
    """Also where lengths are equal, in which case there are many trees: all of one length, a few, or all different."""
    generator = torch.Generator().manual_seed(count)
    rows = torch.rand(count, count, generator=generator, dtype=torch.float64)
    distances = (rows + rows.T) / 2
    if levels:
        distances = (distances * levels).floor()
    tree = spanning_tree(distances)
    assert sorted(map(tuple, tree.nonzero().tolist())) == sorted(kruskal(distances))


def test_a_chain_is_its_own_tree():
    """The longest way for components to merge: each has only its two neighbors."""
    places = torch.arange(40.0) ** 1.5
    tree = spanning_tree((places[:, None] - places).abs())
    assert tree.nonzero().tolist() == [[i, i + 1] for i in range(39)]


def test_the_loss_is_that_of_the_definition(pair):
    student, teacher = pair
    assert persistence_loss(student, teacher).item() == pytest.approx(naive_loss(student, teacher).item(), rel=1e-12)


def test_gradients_are_those_of_the_loss_and_the_teacher_gets_none(pair):
    student, teacher = pair.clone().requires_grad_(True).unbind()
    assert torch.autograd.gradcheck(lambda x: persistence_loss(x, teacher.detach()), student)
    (gradient,) = torch.autograd.grad(persistence_loss(student, teacher), teacher, allow_unused=True)
    assert gradient is None


def test_it_sees_structure_alone(pair):
    """Turned, scaled and reordered features have the same scales; other features don't."""
    student, teacher = pair
    turn, _ = torch.linalg.qr(torch.randn(5, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64))
    loss, mixed = persistence_loss(student, teacher), torch.randperm(9, generator=torch.Generator().manual_seed(2))
    assert torch.allclose(persistence_loss(student @ turn * 4, teacher), loss)
    assert torch.allclose(persistence_loss(student[mixed], teacher[mixed]), loss)
    assert persistence_loss(teacher @ turn, teacher).item() == pytest.approx(0, abs=1e-20)
    assert loss > 0.01


def test_distances_between_clusters_count_only_where_those_merge():
    """Two tight pairs: where they lie to each other counts by the one edge that joins them."""
    angles = torch.tensor([0.0, 0.1, 1.0, 1.15], dtype=torch.float64)

    def on_circle(angles):
        return torch.stack([angles.cos(), angles.sin()], dim=1)

    wider = angles + torch.tensor([0.0, 0.0, 0.2, 0.2], dtype=torch.float64)
    joint = 1 - torch.cos(wider[2] - wider[1]) - (1 - torch.cos(angles[2] - angles[1]))
    loss = persistence_loss(on_circle(wider), on_circle(angles))
    assert loss.item() == pytest.approx(joint.item() ** 2 / 3, rel=1e-9)


def test_equal_views_and_half_precision_stay_finite():
    rows = torch.ones(6, 4).half().requires_grad_(True)
    loss = persistence_loss(rows, torch.ones(6, 4))
    (gradient,) = torch.autograd.grad(loss, rows)
    assert loss.dtype == torch.float32 and loss.isfinite() and gradient.isfinite().all()
