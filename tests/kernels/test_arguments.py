"""Bad arguments are refused by name; NaN and inf are not hidden; vectors of length zero follow torch."""

from typing import Any

import pytest
import torch

from nncsl import kernels
from tests.kernels.cases import problem, run_nnd, run_snn

BACKENDS = ["reference", "blockwise", "auto"]


def call(**changes: Any) -> None:
    """Call both functions with one argument changed."""
    p = problem(n=4, k=6, classes=3, dim=16)
    arguments: dict[str, Any] = {"queries": p.queries, "supports": p.supports, "labels": p.labels, "num_classes": 3}
    arguments.update(changes)
    teacher = {"teacher_queries": p.teacher_queries, "teacher_supports": p.teacher_supports}
    teacher.update({name: arguments.pop(name) for name in teacher if name in arguments})
    if not any(name in changes for name in teacher):
        kernels.snn(**arguments)
    kernels.nnd_loss(**arguments, **teacher)


def test_the_unchanged_call_is_accepted() -> None:
    call()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"queries": torch.zeros(4)}, r"queries must have shape \[rows, dim\].*got shape \[4\]"),
        ({"queries": [[1.0]]}, "queries must be a tensor .*got list"),
        ({"queries": torch.zeros(4, 16, dtype=torch.int64)}, "queries must be float32.*got torch.int64"),
        ({"supports": torch.zeros(6, 8)}, r"supports must have dim 16 like queries, got shape \[6, 8\]"),
        ({"supports": torch.zeros(0, 16), "labels": torch.zeros(0, dtype=torch.int64)}, "supports is empty"),
        ({"supports": torch.zeros(6, 16, dtype=torch.complex64)}, "supports must be float32.*got torch.complex64"),
        ({"supports": torch.zeros(6, 16, device="meta")}, "supports must be on cpu like queries, got meta"),
        ({"labels": torch.zeros(5, dtype=torch.int64)}, r"labels must have shape \[6\].*got \[5\]"),
        ({"labels": torch.zeros(6)}, "labels of shape .* must be of an integer type, got torch.float32"),
        ({"labels": torch.zeros(6, 3, dtype=torch.int64)}, "labels of shape .* must be floating.*got torch.int64"),
        ({"labels": torch.zeros(6, 4)}, "num_classes is 3, but labels have 4 columns"),
        ({"labels": torch.tensor([0, 1, 2, 3, 0, 0])}, r"labels must be in \[0, 3\).*got 3"),
        ({"labels": torch.tensor([0, 1, -1, 2, 0, 0])}, r"labels must be in \[0, 3\).*got -1"),
        ({"labels": torch.zeros(6, dtype=torch.int64, device="meta")}, "labels must be on cpu like supports, got meta"),
        ({"mask": torch.ones(5, dtype=torch.bool)}, r"mask must be a bool tensor of shape \[6\].*got torch.bool \[5\]"),
        ({"mask": torch.ones(6)}, r"mask must be a bool tensor.*got torch.float32"),
        ({"mask": torch.zeros(6, dtype=torch.bool)}, "mask uses none of the 6 supports"),
        ({"num_classes": 0}, "num_classes must be >= 1, got 0"),
        ({"temperature": 0.0}, "temperature must be a finite number > 0, got 0.0"),
        ({"temperature": -1.0}, "temperature must be a finite number > 0, got -1.0"),
        ({"temperature": float("nan")}, "temperature must be a finite number > 0, got nan"),
        ({"smoothing": 1.0}, r"smoothing must be in \[0, 1\), got 1.0"),
        ({"smoothing": -0.1}, r"smoothing must be in \[0, 1\), got -0.1"),
        (
            {"teacher_queries": torch.zeros(3, 16)},
            r"teacher_queries must have 4 rows like queries, got shape \[3, 16\]",
        ),
        ({"teacher_supports": torch.zeros(6, 8)}, "teacher_supports must have dim 16 like teacher_queries"),
    ],
)
def test_bad_arguments(backend: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(backend=backend, **changes)


def test_unknown_back_end() -> None:
    with pytest.raises(ValueError, match=r"backend must be one of .*got 'cuda'"):
        call(backend="cuda")


def test_a_mean_over_no_queries_is_refused() -> None:
    with pytest.raises(ValueError, match="queries is empty"):
        kernels.nnd_loss(*(torch.zeros(s, 16) for s in (0, 2, 0, 2)), torch.tensor([0, 1]))


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_queries_have_no_probabilities(backend: str) -> None:
    out = kernels.snn(torch.zeros(0, 16), torch.ones(2, 16), torch.tensor([0, 1]), backend=backend)
    assert out.shape == (0, 2)


def test_num_classes_defaults_to_the_largest_label() -> None:
    out = kernels.snn(torch.ones(3, 4), torch.ones(2, 4), torch.tensor([1, 4], dtype=torch.int32))
    torch.testing.assert_close(out, torch.tensor([[0, 0.5, 0, 0, 0.5]]).expand(3, 5))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.1, 0.01])
def test_bad_numbers_propagate(backend: str, bad: float, temperature: float, device: torch.device) -> None:
    p = problem(n=300, k=200, device=device, temperature=temperature)
    p.queries[1, 3] = bad
    result = run_snn(p, backend)
    assert result["output"][1].isnan().all()
    assert result["output"][0].isfinite().all()
    assert result["supports.grad"].isnan().any()
    assert run_nnd(p, backend)["output"].isnan()
    p = problem(n=300, k=200, device=device, temperature=temperature)
    p.supports[1, 3] = bad
    assert run_snn(p, backend)["output"].isnan().all()
    assert run_nnd(p, backend)["output"].isnan()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.1, 0.01])
def test_bad_numbers_propagate_through_triton(bad: float, temperature: float, triton_device: torch.device) -> None:
    p = problem(n=5, k=7, dim=16, device=triton_device, temperature=temperature)
    p.queries[1, 3] = bad
    result = run_snn(p, "triton")
    assert result["output"][1].isnan().all()
    assert result["output"][0].isfinite().all()
    assert result["supports.grad"].isnan().any()
    assert run_nnd(p, "triton")["output"].isnan()
    p = problem(n=5, k=7, dim=16, device=triton_device, temperature=temperature)
    p.supports[1, 3] = bad
    assert run_snn(p, "triton")["output"].isnan().all()
    assert run_nnd(p, "triton")["output"].isnan()


@pytest.mark.parametrize("backend", BACKENDS)
def test_bad_numbers_of_unused_supports_do_not_matter(backend: str) -> None:
    p = problem(masked=True)
    p.supports[~p.options["mask"]] = float("nan")
    for value in {**run_snn(p, backend), **run_nnd(p, backend)}.values():
        assert value.isfinite().all()


@pytest.mark.parametrize(
    ("backend", "size"), [("blockwise", {}), ("blockwise", {"n": 1030, "k": 1100}), ("triton", {"n": 20, "k": 30})]
)
@pytest.mark.parametrize("run", [run_snn, run_nnd])
def test_vectors_of_length_zero_follow_normalize(run: Any, backend: str, size: dict[str, int]) -> None:
    """They have cosine 0 with everything, and the gradient of x / 1e-12."""
    if backend == "triton":
        pytest.importorskip("triton")
    p = problem(**size, device="cuda" if backend == "triton" and torch.cuda.is_available() else "cpu")
    p.queries[3] = 0
    p.supports[5] = 0
    ours, reference = run(p, backend), run(p, "reference")
    torch.testing.assert_close(ours["output"], reference["output"], rtol=1e-4, atol=1e-6)
    for name, row in (("queries.grad", 3), ("supports.grad", 5)):
        assert reference[name][row].abs().max() > 1e6
        torch.testing.assert_close(ours[name][row], reference[name][row], rtol=1e-3, atol=1e6)
        others = torch.arange(len(ours[name])) != row
        torch.testing.assert_close(ours[name][others], reference[name][others], rtol=1e-3, atol=1e-5)
