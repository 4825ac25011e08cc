"""Random problems, many runs, and many steps: every back end against the fp64 reference."""

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from nncsl import kernels
from tests.kernels.cases import assert_as_good_as_eager, problem, run_nnd, run_snn

pytest.importorskip("triton")
# Without shrinking: the interpreter is slow, and the problems are small anyway.
SLOW = {
    "deadline": None, "suppress_health_check": list(HealthCheck), "derandomize": True, "database": None,
    "phases": [Phase.explicit, Phase.generate],
}  # fmt: skip

PROBLEMS = st.fixed_dictionaries(
    {
        "n": st.integers(1, 40),
        "k": st.integers(1, 90),
        "classes": st.integers(1, 12),
        "temperature": st.sampled_from([0.005, 0.02, 0.03, 0.1, 1.0, 100.0]),
        "smoothing": st.sampled_from([0.0, 0.1, 0.9]),
        "masked": st.booleans(),
        "seed": st.integers(0, 1000),
    }
)


@settings(max_examples=25, **SLOW)  # type: ignore[arg-type]
@given(PROBLEMS, st.sampled_from([run_snn, run_nnd]), st.sampled_from([torch.float32, torch.float16, torch.bfloat16]))
def test_blockwise(sizes: dict[str, Any], run: Any, dtype: torch.dtype) -> None:
    assert_as_good_as_eager(run, problem(dtype=dtype, dim=16, **sizes), "blockwise")


@settings(max_examples=15, **SLOW)  # type: ignore[arg-type]
@given(PROBLEMS, st.sampled_from([run_snn, run_nnd]), st.sampled_from([torch.float32, torch.float16]))
def test_triton(sizes: dict[str, Any], run: Any, dtype: torch.dtype) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    assert_as_good_as_eager(run, problem(dtype=dtype, dim=16, device=device, **sizes), "triton")


@pytest.mark.parametrize(("backend", "k"), [("blockwise", 300), ("triton", 30), ("triton", 650)])
def test_thirty_runs_are_bitwise_equal(backend: str, k: int, triton_device: torch.device) -> None:
    p = problem(n=20, k=k, dim=16, device=triton_device)
    for run in (run_snn, run_nnd):
        first = run(p, backend)
        for _ in range(29 if backend == "blockwise" or k < 100 else 2):
            for name, value in run(p, backend).items():
                assert torch.equal(value, first[name]), name


def trained(backend: str, dtype: torch.dtype, steps: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Train a linear map of vectors by all losses at once; return its weights and the last loss."""
    p = problem(n=16, k=12, dim=16, dtype=dtype, device=device)
    rng = torch.Generator().manual_seed(5)
    weights = torch.eye(16) + 0.1 * torch.randn(16, 16, generator=rng)
    weights = weights.to(device, dtype).requires_grad_()
    options: dict[str, Any] = {"num_classes": 7, "smoothing": 0.1, "backend": backend}
    for _ in range(steps):
        queries, supports = p.queries @ weights, p.supports @ weights
        snn = kernels.snn_loss(queries, supports, p.labels, **options)
        nnd = kernels.nnd_loss(queries, supports, p.teacher_queries, p.teacher_supports, p.labels, **options)
        loss = snn.cross_entropy + snn.minus_entropy + nnd
        (grad,) = torch.autograd.grad(loss, weights)
        weights = (weights - 0.02 * grad).detach().requires_grad_()
    return weights.detach().double(), loss.detach().double()


@pytest.mark.parametrize(("backend", "steps"), [("blockwise", 200), ("triton", 30)])
def test_many_steps_end_at_the_same_weights(backend: str, steps: int, triton_device: torch.device) -> None:
    """Rounding grows from step to step, with every back end alike. The interpreter has time for fewer."""
    steps = 200 if triton_device.type == "cuda" else steps
    exact, lowest = trained("reference", torch.float64, steps, triton_device)
    eager, _ = trained("reference", torch.float32, steps, triton_device)
    found, loss = trained(backend, torch.float32, steps, triton_device)
    start = trained("reference", torch.float64, 1, triton_device)[1]
    assert lowest < start - 0.01
    assert abs(loss - lowest) < 1e-4
    assert (found - exact).abs().max() <= 4 * (eager - exact).abs().max() + 1e-4
