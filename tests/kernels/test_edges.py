"""Where such code goes wrong quietly: no queries, tiny probabilities, bad rows, inference mode, transforms."""

from typing import Any

import pytest
import torch
from torch import Tensor

from nncsl import kernels
from tests.kernels.cases import Problem, problem, run_nnd, run_snn, with_cross_entropy, with_near_teacher

BACKENDS = ["reference", "blockwise", "triton"]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    if request.param == "triton":
        pytest.importorskip("triton")
    return request.param


@pytest.mark.parametrize("k", [6, 700])
def test_no_queries_give_no_support_gradient(backend: str, k: int, triton_device: torch.device) -> None:
    p = problem(n=0, k=k, dim=16, device=triton_device)
    result = run_snn(p, backend)
    assert result["output"].shape == (0, 7)
    assert torch.equal(result["supports.grad"], torch.zeros_like(p.supports))


def test_inference_mode(backend: str, triton_device: torch.device) -> None:
    p = problem(n=9, k=12, dim=16, device=triton_device, masked=True)
    expected = kernels.snn(p.queries, p.supports, p.labels, backend=backend, **p.options)
    with torch.inference_mode():
        mask, labels = p.options["mask"].clone(), p.labels.clone()
        options = {**p.options, "mask": mask}
        found = kernels.snn(p.queries.clone(), p.supports, labels, backend=backend, **options)
    assert torch.equal(found, expected)


def opposite(device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Two large views that are sure of different classes: each other's probability is exp(-2 / temperature)."""
    supports = torch.zeros(2, 16, device=device)
    supports[0, 0], supports[1, 0] = 1, -1
    return supports[[0, 1]].clone(), supports, torch.tensor([0, 1], device=device)


@pytest.mark.parametrize("temperature", [0.005, 0.01, 0.1])
def test_the_objective_where_probabilities_underflow(
    backend: str, temperature: float, triton_device: torch.device
) -> None:
    results = {}
    for dtype, name in ((torch.float64, "reference"), (torch.float32, backend)):
        queries, supports, labels = (x.to(dtype) if x.is_floating_point() else x for x in opposite(triton_device))
        queries = (queries + 0.1 * torch.arange(32, device=queries.device).view(2, 16).sin().to(dtype)).requires_grad_()
        loss = kernels.snn_loss(
            queries, supports.requires_grad_(), labels, small_views=0, temperature=temperature, backend=name
        )
        (loss.cross_entropy + loss.minus_entropy).backward()
        results[dtype] = loss.cross_entropy, loss.minus_entropy, queries.grad, supports.grad
    assert results[torch.float64][0].item() > 1 / temperature
    for ours, exact in zip(results[torch.float32], results[torch.float64], strict=True):
        torch.testing.assert_close(ours.double(), exact, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("temperature", [0.005, 0.1])
def test_logarithms(backend: str, temperature: float, smoothing: float, triton_device: torch.device) -> None:
    p = problem(n=9, k=20, dim=16, device=triton_device, temperature=temperature, smoothing=smoothing, classes=9)
    results = {}
    for given, name in ((p.to(torch.float64), "reference"), (p, backend)):
        queries, supports = given.queries.clone().requires_grad_(), given.supports.clone().requires_grad_()
        logs = kernels.snn(queries, supports, p.labels, return_log=True, backend=name, **p.options)
        finite = torch.where(logs == -torch.inf, 0.0, logs)
        (finite * p.upstream).sum().backward()
        results[name if given is p else "exact"] = logs.detach(), queries.grad, supports.grad
    assert (results["exact"][0] == -torch.inf).any() == (smoothing == 0)
    for ours, exact in zip(results[backend], results["exact"], strict=True):
        torch.testing.assert_close(
            ours.double(), exact, rtol=1e-4, atol=1e-4 * float(exact[exact.isfinite()].abs().max())
        )


@pytest.mark.parametrize("name", ["temperature", "smoothing"])
def test_numbers_that_require_grad_are_refused(backend: str, name: str, triton_device: torch.device) -> None:
    p = problem(n=9, k=12, dim=16, device=triton_device)
    options = {**p.options, name: torch.tensor(0.1, requires_grad=True)}
    with pytest.raises(ValueError, match=f"{name} must be a number, got a tensor that requires grad"):
        kernels.snn(p.queries, p.supports, p.labels, backend=backend, **options)


def losses(p: Problem, queries: Tensor, supports: Tensor, backend: str) -> Tensor:
    options = {"num_classes": 7, "backend": backend}
    nnd = kernels.nnd_loss(queries, supports, p.teacher_queries, p.teacher_supports, p.labels, **options)
    both = kernels.snn_loss(queries, supports, p.labels, small_views=0, smoothing=0.1, **options)
    return nnd + both.cross_entropy + both.minus_entropy


@pytest.mark.parametrize("size", [(8, 10), (600, 70)])
def test_torch_func_at_every_size(size: tuple[int, int]) -> None:
    n, k = size
    p = problem(n=n, k=k, dim=16)

    def total(queries: Tensor, supports: Tensor, backend: str = "auto") -> Tensor:
        return losses(p, queries, supports, backend)

    for i, ours in enumerate(torch.func.grad(total, argnums=(0, 1))(p.queries, p.supports)):
        leaves = [p.queries.clone().requires_grad_(), p.supports.clone().requires_grad_()]
        total(*leaves, backend="reference").backward()
        torch.testing.assert_close(ours, leaves[i].grad, rtol=1e-3, atol=1e-6)

    def some(queries: Tensor, backend: str = "auto") -> Tensor:
        return kernels.snn(queries, p.supports, p.labels, num_classes=7, backend=backend)[:2].sum(0)

    expected = torch.func.jacrev(lambda queries: some(queries, "reference"))(p.queries)
    torch.testing.assert_close(torch.func.jacrev(some)(p.queries), expected, rtol=1e-3, atol=1e-6)
    batch = torch.stack([p.queries, p.teacher_queries])
    expected = torch.stack([some(batch[0]), some(batch[1])])
    torch.testing.assert_close(torch.func.vmap(some)(batch), expected)
    grads = torch.func.vmap(torch.func.grad(total), in_dims=(0, None))(batch, p.supports)
    torch.testing.assert_close(grads[1], torch.func.grad(total)(batch[1], p.supports))


HALF_OR_NOT = [torch.float16, torch.float32]


def assert_gradients_follow(p: Problem, run: Any, backend: str, allowed: float) -> None:
    """Gradients relative to their own size, against the fp64 reference on the same rounded inputs."""
    exact, found = run(p.to(torch.float64), "reference"), run(p, backend)
    for name in ("queries.grad", "supports.grad"):
        error = (found[name].double() - exact[name].double()).abs().max() / exact[name].double().abs().max()
        assert error <= allowed, f"{name}: {error:.1e}"


@pytest.mark.parametrize("dtype", HALF_OR_NOT)
@pytest.mark.parametrize("k", [30, 700])
def test_a_cross_entropy_over_tiny_probabilities(
    backend: str, k: int, dtype: torch.dtype, triton_device: torch.device
) -> None:
    p = problem(n=20, k=k, dim=16, dtype=dtype, device=triton_device, temperature=0.05 if k < 100 else 0.02)
    p = with_cross_entropy(p, smallest=0)
    assert p.upstream.abs().max() > 1e5
    assert_gradients_follow(p, run_snn, backend, 2e-3 if dtype == torch.float16 else 1e-4)


@pytest.mark.parametrize("dtype", HALF_OR_NOT)
@pytest.mark.parametrize(("k", "smoothing"), [(30, 0.0), (100, 0.1), (700, 0.0)])
def test_a_teacher_close_to_the_student(
    backend: str, k: int, smoothing: float, dtype: torch.dtype, triton_device: torch.device
) -> None:
    p = with_near_teacher(problem(n=20, k=k, dim=16, dtype=dtype, device=triton_device, smoothing=smoothing))
    assert_gradients_follow(p, run_nnd, backend, 3e-3 if dtype == torch.float16 else 2e-4)


@pytest.mark.parametrize("run", [run_snn, run_nnd])
@pytest.mark.parametrize("k", [30, 700])
def test_a_bad_row_spoils_only_itself(backend: str, k: int, run: Any, triton_device: torch.device) -> None:
    if backend == "reference":
        pytest.skip("a product with NaN * 0 in it")
    p = problem(n=9, k=k, dim=16, device=triton_device, masked=True)
    p.supports[~p.options["mask"]] = float("nan")
    assert all(value.isfinite().all() for value in run(p, backend).values())
    p.queries[2, 1] = float("nan")
    bad = run(p, backend)["queries.grad"].isnan().any(1)
    assert bad.nonzero().flatten().tolist() == [2]


def test_a_label_that_is_no_class_shows_on_a_gpu(triton_device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a device to look at its labels."""
    monkeypatch.setattr("nncsl.kernels.checks.values_are_at_hand", lambda _: False)
    for k in (20, 700):
        p = problem(n=5, k=k, dim=16, device=triton_device)
        for wrong in (-1, 7):
            p.labels[3] = wrong
            assert all(value.isnan().all() for value in run_snn(p, "triton").values())
