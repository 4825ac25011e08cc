"""Random problems, many runs, and many steps: every back end against the fp64 reference."""

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from nncsl import kernels
from tests.kernels.cases import (
    Problem,
    assert_as_good_as_eager,
    problem,
    run_nnd,
    run_snn,
    with_cross_entropy,
    with_near_teacher,
)

pytest.importorskip("triton")
# Without shrinking: the interpreter is slow, and the problems are small anyway.
SLOW = {
    "deadline": None, "suppress_health_check": list(HealthCheck), "derandomize": True, "database": None,
    "phases": [Phase.explicit, Phase.generate],
}  # fmt: skip
TEMPERATURES = st.one_of(
    st.sampled_from([0.005, 0.02, 0.03, 0.1, 1.0, 100.0]), st.floats(-2.3, 2.0).map(lambda power: 10.0**power)
)


@st.composite
def problems(draw: Any, dtypes: list[torch.dtype], device: str) -> tuple[Any, Problem]:
    """A call and its tensors: no queries, warm and cold, upstream gradients of all sizes, teachers far and near."""
    run = draw(st.sampled_from([run_snn, run_nnd]))
    p = problem(
        n=draw(st.integers(0 if run is run_snn else 1, 40)),
        k=draw(st.integers(1, 90)),
        classes=draw(st.integers(1, 12)),
        dim=16,
        dtype=draw(st.sampled_from(dtypes)),
        device=device,
        masked=draw(st.booleans()),
        seed=draw(st.integers(0, 1000)),
        temperature=draw(TEMPERATURES),
        smoothing=draw(st.sampled_from([0.0, 0.1, 0.9])),
    )
    if draw(st.booleans()):
        p = with_cross_entropy(p) if run is run_snn else with_near_teacher(p)
    return run, p


@settings(max_examples=60, **SLOW)  # type: ignore[arg-type]
@given(problems([torch.float32, torch.float16, torch.bfloat16], "cpu"))
def test_blockwise(drawn: tuple[Any, Problem]) -> None:
    assert_as_good_as_eager(*drawn, "blockwise")


@settings(max_examples=30, **SLOW)  # type: ignore[arg-type]
@given(problems([torch.float32, torch.float16], "cuda" if torch.cuda.is_available() else "cpu"))
def test_triton(drawn: tuple[Any, Problem]) -> None:
    assert_as_good_as_eager(*drawn, "triton")


def in_interpreter(backend: str, device: torch.device) -> bool:
    """Tell whether a back end's programs are interpreted, a hundred times slower than they would be computed."""
    return backend == "triton" and device.type == "cpu"


@pytest.mark.parametrize(("backend", "most_unsorted"), [("blockwise", 0), ("triton", 640), ("triton", 0)])
def test_many_runs_are_bitwise_equal(
    backend: str, most_unsorted: int, triton_device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few supports, and the way of many: sorted, in several splits.

    Programs of a GPU race each other. Triton's interpreter runs them one after the other: two runs show there that
    nothing is left over from the first.
    """
    from nncsl.kernels import fused

    monkeypatch.setattr(fused, "SMALL", most_unsorted)
    repeats = 2 if in_interpreter(backend, triton_device) else 29
    p = problem(n=20, k=40, dim=16, device=triton_device)
    for run in (run_snn, run_nnd):
        first = run(p, backend)
        for _ in range(repeats):
            for name, value in run(p, backend).items():
                assert torch.equal(value, first[name]), name


def trained(
    backend: str, dtype: torch.dtype, steps: int, device: torch.device, toward: float | None = None
) -> tuple[Tensor, list[float]]:
    """Train a linear map of vectors by all losses at once; return its weights and the losses.

    toward: where the weights are moved to by one unit in the last place before the first step.
    """
    p = problem(n=16, k=12, dim=16, dtype=dtype, device=device)
    rng = torch.Generator().manual_seed(5)
    weights = (torch.eye(16) + 0.1 * torch.randn(16, 16, generator=rng)).to(device, dtype)
    if toward is not None:
        weights = torch.nextafter(weights, torch.full_like(weights, toward))
    options: dict[str, Any] = {"num_classes": 7, "smoothing": 0.1, "backend": backend}
    losses = []
    for _ in range(steps):
        weights.requires_grad_()
        queries, supports = p.queries @ weights, p.supports @ weights
        snn = kernels.snn_loss(queries, supports, p.labels, **options)
        nnd = kernels.nnd_loss(queries, supports, p.teacher_queries, p.teacher_supports, p.labels, **options)
        loss = snn.cross_entropy + snn.minus_entropy + nnd
        (grad,) = torch.autograd.grad(loss, weights)
        weights = (weights - 0.05 * grad).detach()
        losses.append(loss.item())
    return weights.double(), losses


@pytest.mark.parametrize("backend", ["blockwise", "triton"])
def test_many_steps_end_at_the_same_weights(backend: str, triton_device: torch.device) -> None:
    """Rounding grows from step to step: a back end may be as far off as eager is, or eager from a start one unit off.

    At four times this rate training is chaotic, and one unit at the start is a tenth of a weight in the end, with
    every back end alike.
    """
    steps = 60 if in_interpreter(backend, triton_device) else 200
    exact, losses = trained("reference", torch.float64, steps, triton_device)
    found, _ = trained(backend, torch.float32, steps, triton_device)
    starts = (None, float("inf"), float("-inf"))
    eager = [trained("reference", torch.float32, steps, triton_device, toward)[0] for toward in starts]
    growth = max((weights - exact).abs().max().item() for weights in eager)
    assert losses[-1] < 0.6 * losses[0]
    assert growth < 1e-4
    assert (found - exact).abs().max() <= 4 * growth
