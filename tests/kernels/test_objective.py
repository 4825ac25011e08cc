"""The SNN objective: its definition by hand, and the hand-written gradient against autograd."""

import pytest
import torch

from nncsl import kernels
from nncsl.kernels import reference
from nncsl.kernels.objective import Objective
from tests.kernels.cases import problem


def test_two_images_by_hand() -> None:
    """One image in two large and one small view: the definition, written out."""
    v = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.7, 0.1], [0.4, 0.4, 0.2]], dtype=torch.float64)
    one, two = (row**4 / (row**4).sum() for row in v[:2])
    targets = (torch.where(t < 1e-4, 0.0, t) for t in (two, one, (one + two) / 2))
    expected = -sum((target * row.log()).sum() for target, row in zip(targets, v, strict=True)) / 3
    mean = sum(row**4 / (row**4).sum() for row in v) / 3
    cross_entropy, minus_entropy = reference.objective(v.log(), small_views=1, power=4.0)
    torch.testing.assert_close(cross_entropy, expected)
    torch.testing.assert_close(minus_entropy, (mean * mean.log()).sum())


def test_small_entries_of_targets_are_dropped() -> None:
    sharp = torch.tensor([[0.99991, 0.00009], [0.5, 0.5]])
    torch.testing.assert_close(reference.targets_of(sharp, 0), torch.tensor([[0.5, 0.5], [0.99991, 0.0]]))


def test_the_mean_of_the_large_views_is_taken_before_small_entries_are_dropped() -> None:
    sharp = torch.tensor([[0.99991, 0.00009, 0.0], [0.5, 0.49985, 0.00015], [0.2, 0.3, 0.5]])
    expected = torch.tensor([[0.5, 0.49985, 0.00015], [0.99991, 0.0, 0.0], [0.749955, 0.24997, 0.0]])
    torch.testing.assert_close(reference.targets_of(sharp, 1), expected)


@pytest.mark.parametrize("small_views", [0, 2, 3])
@pytest.mark.parametrize("absent", [False, True])
def test_gradient_by_hand_is_that_of_autograd(small_views: int, absent: bool) -> None:
    rng = torch.Generator().manual_seed(0)
    p = torch.softmax(torch.randn((2 + small_views) * 6, 7, generator=rng, dtype=torch.float64) * 2, dim=1)
    if absent:
        p[:, 3] = 0
    results = []
    for by_hand in (False, True):
        x = p.clone().requires_grad_()
        arguments = small_views, 4.0
        log_x = torch.where(x == 0, -torch.inf, torch.where(x == 0, 1.0, x).log())
        losses = Objective.apply(x, *arguments, True)[:2] if by_hand else reference.objective(log_x, *arguments)
        (2 * losses[0] + 3 * losses[1]).backward()
        results.append((*losses, x.grad))
    for plain, ours in zip(*results, strict=True):
        assert plain.isfinite().all()
        torch.testing.assert_close(ours, plain)


def test_the_whole_loss_and_its_gradients(device: torch.device) -> None:
    p = problem(n=400, k=60, device=device, smoothing=0.1)
    results = []
    for backend in ("reference", "auto"):
        queries, supports = p.queries.clone().requires_grad_(), p.supports.clone().requires_grad_()
        losses = kernels.snn_loss(queries, supports, p.labels, backend=backend, **p.options)
        (losses.cross_entropy + losses.minus_entropy).backward()
        results.append((*losses[:2], queries.grad, supports.grad))
    for plain, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("backend", ["reference", "blockwise", "triton"])
@pytest.mark.parametrize("small_views", [0, 2])
def test_predictions_are_those_of_snn(backend: str, small_views: int, triton_device: torch.device) -> None:
    p = problem(n=48, k=20, device=triton_device, masked=True, smoothing=0.1)
    queries = p.queries.requires_grad_()
    loss = kernels.snn_loss(queries, p.supports, p.labels, small_views=small_views, backend=backend, **p.options)
    expected = kernels.snn(queries, p.supports, p.labels, backend=backend, **p.options).argmax(1)
    assert loss.predictions.dtype == torch.int64 and not loss.predictions.requires_grad
    assert torch.equal(loss.predictions, expected)
    assert len(expected.unique()) > 1


def test_nan_propagates() -> None:
    p = problem(n=400, k=60)
    p.queries[0] = float("nan")
    assert all(loss.isnan() for loss in kernels.snn_loss(p.queries, p.supports, p.labels)[:2])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"small_views": 1}, r"queries must have a multiple of 3 rows .* got shape \[400, 32\]"),
        ({"small_views": -1}, "small_views must be >= 0, got -1"),
        ({"sharpening": 0.0}, r"sharpening must be in \(0, 1\], got 0.0"),
        ({"temperature": 0.0}, "temperature must be"),
    ],
)
def test_bad_arguments(change: dict[str, float], message: str) -> None:
    p = problem(n=400)
    with pytest.raises(ValueError, match=message):
        kernels.snn_loss(p.queries, p.supports, p.labels, **change)  # type: ignore[arg-type]


def test_torch_compile() -> None:
    p = problem(n=400, k=60)

    def total(queries: torch.Tensor) -> torch.Tensor:
        loss = kernels.snn_loss(queries, p.supports, p.labels, num_classes=7)
        return loss.cross_entropy + loss.minus_entropy

    grads = []
    for function in (total, torch.compile(total, fullgraph=True, backend="aot_eager")):
        queries = p.queries.clone().requires_grad_()
        function(queries).backward()
        grads.append(queries.grad)
    torch.testing.assert_close(grads[0], grads[1])
