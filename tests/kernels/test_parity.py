"""Every back end against the fp64 reference: outputs and both gradients, for `snn` and `nnd_loss`."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.kernels.cases import Problem, assert_as_good_as_eager, problem, run_nnd, run_snn

RUNS = {"snn": run_snn, "nnd": run_nnd}

CASES: dict[str, dict[str, Any]] = {
    "odd shape": {},
    "one query": {"n": 1},
    "one support": {"k": 1, "classes": 1},
    "one support of many classes": {"k": 1, "classes": 300},
    "smoothing": {"smoothing": 0.1},
    "mask": {"masked": True},
    "mask and smoothing": {"masked": True, "smoothing": 0.1},
    "more classes than supports": {"n": 33, "k": 20, "classes": 1000, "smoothing": 0.1},
    "classes without supports": {"n": 33, "k": 20, "classes": 40},
    "many classes": {"n": 24, "k": 70, "classes": 1000, "dim": 16},
    "wide vectors": {"n": 20, "k": 30, "dim": 256},
    "dim not a power of two": {"dim": 48},
    "just warm": {"temperature": 0.026},
    "cold": {"temperature": 0.01},
    "cold, smoothing, mask": {"temperature": 0.01, "smoothing": 0.1, "masked": True},
    "hot": {"temperature": 10.0},
}
BLOCKWISE_CASES: dict[str, dict[str, Any]] = {
    "soft labels": {"soft": True},
    "soft labels, smoothing, mask": {"soft": True, "smoothing": 0.1, "masked": True},
    "soft labels, cold": {"soft": True, "temperature": 0.01},
    "several blocks": {"n": 700, "k": 2000, "classes": 11, "masked": True, "smoothing": 0.1},
    "several blocks and groups of queries": {"n": 2100, "k": 4200, "classes": 11},
    "several blocks, cold": {"n": 1100, "k": 2000, "classes": 11, "temperature": 0.02},
    "several blocks, soft": {"n": 1100, "k": 2000, "classes": 5, "soft": True},
    "odd dim": {"dim": 5},
}


# Many supports are sorted by class, in splits and chunks.
TRITON_LARGE_CASES: dict[str, dict[str, Any]] = {
    "large": {"n": 33, "k": 700, "classes": 11},
    "large, many classes": {"n": 9, "k": 650, "classes": 300, "dim": 16, "masked": True},
    "large, cold, smoothing, mask": {"n": 17, "k": 900, "temperature": 0.005, "smoothing": 0.1, "masked": True},
    "large, cold": {"n": 17, "k": 700, "temperature": 0.005},
    "large, one class": {"n": 17, "k": 700, "classes": 1},
}

# Half precision differs from fp32 only in the products and in the size of tiles: the interpreter is slow.
TRITON_FP16_CASES = ["odd shape", "mask and smoothing", "wide vectors", "dim not a power of two", "cold"]


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS.keys())
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["fp32", "fp16"])
def test_blockwise(dtype: torch.dtype, case: dict[str, Any], run: Any, device: torch.device) -> None:
    assert_as_good_as_eager(run, problem(dtype=dtype, device=device, **case), "blockwise")


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS.keys())
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_triton(case: dict[str, Any], run: Any, triton_device: torch.device) -> None:
    assert_as_good_as_eager(run, problem(device=triton_device, **case), "triton")


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS.keys())
@pytest.mark.parametrize("case", TRITON_LARGE_CASES.values(), ids=TRITON_LARGE_CASES.keys())
def test_triton_with_many_supports(
    case: dict[str, Any], run: Any, triton_device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nncsl.kernels import fused

    assert_as_good_as_eager(run, problem(device=triton_device, **case), "triton")
    monkeypatch.setattr(fused, "QUERIES_AT_ONCE", 32)  # several chunks of both
    monkeypatch.setattr(fused, "PARTS_BYTES", 1 << 16)
    assert_as_good_as_eager(run, problem(device=triton_device, dtype=torch.float16, **case), "triton")


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS.keys())
@pytest.mark.parametrize("case", TRITON_FP16_CASES)
def test_triton_in_half_precision(case: str, run: Any, triton_device: torch.device) -> None:
    assert_as_good_as_eager(run, problem(dtype=torch.float16, device=triton_device, **CASES[case]), "triton")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="Triton's interpreter computes bf16 wrongly")
@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS.keys())
def test_triton_in_bfloat16(run: Any, triton_device: torch.device) -> None:
    assert_as_good_as_eager(run, problem(dtype=torch.bfloat16, device=triton_device), "triton")


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS.keys())
def test_triton_teacher_of_another_dim_and_type(run: Any, triton_device: torch.device) -> None:
    p, other = problem(device=triton_device), problem(dim=64, device=triton_device)
    teacher = other.teacher_queries.half(), other.teacher_supports.half()
    p = replace(p, teacher_queries=teacher[0], teacher_supports=teacher[1])
    for temperature in (0.1, 0.02):  # one launch, and class segments
        p.options["temperature"] = temperature
        ours, exact = run(p, "triton"), run(p, "reference")
        for name, value in exact.items():
            torch.testing.assert_close(ours[name], value, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS.keys())
@pytest.mark.parametrize("case", BLOCKWISE_CASES.values(), ids=BLOCKWISE_CASES.keys())
def test_blockwise_in_blocks(case: dict[str, Any], run: Any, device: torch.device) -> None:
    assert_as_good_as_eager(run, problem(device=device, **case), "blockwise")


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS.keys())
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=["bf16", "fp64"])
@pytest.mark.parametrize("temperature", [0.1, 0.01])
def test_blockwise_dtypes(dtype: torch.dtype, temperature: float, run: Any, device: torch.device) -> None:
    assert_as_good_as_eager(run, problem(dtype=dtype, device=device, temperature=temperature), "blockwise")


def test_duplicated_supports_share_their_mass(device: torch.device) -> None:
    p = problem(device=device)
    twice = [torch.cat([x, x]) for x in (p.supports, p.labels)]
    doubled = problem(device=device)
    doubled = type(p)(p.queries, twice[0], p.queries, twice[0], twice[1], p.upstream, p.options)
    once, both = run_snn(p, "blockwise"), run_snn(doubled, "blockwise")
    torch.testing.assert_close(both["output"], once["output"])
    torch.testing.assert_close(both["supports.grad"][:61] * 2, once["supports.grad"])


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("temperature", [0.1, 0.01])
@pytest.mark.parametrize("limit", [1 << 20, 0], ids=["whole", "blocks"])
@pytest.mark.parametrize("name", RUNS)
def test_gradcheck(
    name: str, limit: int, temperature: float, soft: bool, smoothing: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nncsl import kernels
    from nncsl.kernels.blockwise import block_loop, whole

    monkeypatch.setattr(whole, "LIMIT", limit)
    monkeypatch.setattr(block_loop, "BLOCK_ELEMENTS", 64)
    p = problem(n=5, k=70, classes=4, dim=3, dtype=torch.float64, soft=soft, masked=True)
    options = {**p.options, "temperature": temperature, "smoothing": smoothing, "backend": "blockwise"}

    def function(queries: torch.Tensor, supports: torch.Tensor) -> torch.Tensor:
        if name == "snn":
            return kernels.snn(queries, supports, p.labels, **options)
        return kernels.nnd_loss(queries, supports, p.teacher_queries, p.teacher_supports, p.labels, **options)

    assert torch.autograd.gradcheck(function, (p.queries.requires_grad_(), p.supports.requires_grad_()))


def assert_repeatable(run: Any, p: Problem, backend: str) -> None:
    first, second = run(p, backend), run(p, backend)
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


@pytest.mark.parametrize("temperature", [0.1, 0.01])
@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS.keys())
def test_two_runs_are_bitwise_equal(run: Any, temperature: float, device: torch.device) -> None:
    assert_repeatable(run, problem(n=1200, k=3000, classes=13, device=device, temperature=temperature), "blockwise")


@pytest.mark.parametrize("k", [60, 100])
@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS.keys())
def test_two_runs_of_triton_are_bitwise_equal(run: Any, k: int, triton_device: torch.device) -> None:
    n = 1000 if triton_device.type == "cuda" else 50
    assert_repeatable(run, problem(n=n, k=k, classes=5, dim=16, device=triton_device), "triton")


def test_loss_is_finite_where_probabilities_underflow(device: torch.device) -> None:
    """Opposite vectors at temperature .01: exp(-200) is no fp32 number, its logarithm is."""
    supports = torch.tensor([[1.0] + [0.0] * 15, [-1.0] + [0.0] * 15], device=device)
    labels = torch.tensor([0, 1], device=device)
    p = problem(n=2, k=2, classes=2, dim=16, device=device, temperature=0.01)
    p = type(p)(supports, supports, -supports, supports, labels, p.upstream, p.options)
    result = run_nnd(p, "blockwise")
    assert result["output"].item() == pytest.approx(200.0, rel=1e-5)
    assert all(value.isfinite().all() for value in result.values())
