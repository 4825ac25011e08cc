"""The package inside other code: back-end choice, autocast, torch.compile, second derivatives, import."""

import subprocess
import sys
from typing import Any

import pytest
import torch

from nncsl import kernels
from nncsl.kernels import checks, choice, targets
from tests.kernels.cases import Problem, problem, run_nnd, run_snn

OPTIONS = {"num_classes": 7, "smoothing": 0.1}


def both(p: Problem, queries: torch.Tensor, supports: torch.Tensor, **options: Any) -> torch.Tensor:
    loss = kernels.nnd_loss(queries, supports, p.teacher_queries, p.teacher_supports, p.labels, **OPTIONS, **options)
    return loss + (kernels.snn(queries, supports, p.labels, **OPTIONS, **options) * p.upstream).sum()


def test_back_ends_are_best_first() -> None:
    found = kernels.backends()
    assert found in (choice.NAMES, choice.NAMES[1:])


def test_environment_forces_a_back_end(monkeypatch: pytest.MonkeyPatch) -> None:
    p = problem()
    monkeypatch.setenv("NNCSL_KERNELS", "reference")
    forced = kernels.snn(p.queries, p.supports, p.labels)
    assert torch.equal(forced, kernels.snn(p.queries, p.supports, p.labels, backend="reference"))
    monkeypatch.setenv("NNCSL_KERNELS", "blockwise")
    forced = kernels.snn(p.queries, p.supports, p.labels)
    assert torch.equal(forced, kernels.snn(p.queries, p.supports, p.labels, backend="blockwise"))
    monkeypatch.setenv("NNCSL_KERNELS", "fast")
    with pytest.raises(ValueError, match=r"environment variable NNCSL_KERNELS must be one of .*got 'fast'"):
        kernels.snn(p.queries, p.supports, p.labels)


@pytest.mark.parametrize(
    ("shape", "expected"), [((4, 6), "reference"), ((1024, 20), "blockwise"), ((1024, 50000), "blockwise")]
)
def test_automatic_choice_on_cpu(shape: tuple[int, int], expected: str) -> None:
    queries, supports = torch.empty(shape[0], 128), torch.empty(shape[1], 128)
    labels = torch.zeros(shape[1], dtype=torch.int64)
    given = checks.checked_problem(queries, supports, labels, None, num_classes=10, temperature=0.1, smoothing=0.0)
    assert choice.choose("auto", given) == expected


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dtype": torch.float64}, "float64"),
        ({"dim": 24}, "dim 24 .*multiples of 16 up to 256"),
        ({"dim": 1024, "dtype": torch.float16}, "dim 1024 .*multiples of 16 up to 512"),
        ({"soft": True}, r"labels of shape \[K, C\]"),
    ],
)
def test_what_triton_refuses(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=f"backend='triton' can't take {reason}"):
        run_snn(problem(**change), "triton")


@pytest.mark.parametrize(
    ("arch", "half", "most"),
    [("sm_75", True, 0), ("sm_80", True, 512), ("gfx942", False, 256), ("gfx1030", True, 0), ("gfx1100", False, 0)],
)
def test_gpus_without_tile_sizes_get_none(arch: str, half: bool, most: int) -> None:
    assert targets.widest(half, arch) == most


@pytest.mark.parametrize("backend", ["reference", "blockwise"])
def test_autocast_changes_nothing(backend: str, device: torch.device) -> None:
    p = problem(device=device)
    grads = []
    for enabled in (False, True):
        queries, supports = p.queries.clone().requires_grad_(), p.supports.clone().requires_grad_()
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=enabled):
            loss = both(p, queries, supports, backend=backend)
        loss.backward()
        grads.append((loss.detach(), queries.grad, supports.grad))
    for plain, inside in zip(*grads, strict=True):
        assert torch.equal(plain, inside)


def test_autocast_around_the_backward_changes_nothing_either() -> None:
    p = problem()
    for run in (run_snn, run_nnd):
        plain = run(p, "blockwise")
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside = run(p, "blockwise")
        for name, value in plain.items():
            assert torch.equal(value, inside[name]), name


@pytest.mark.parametrize("backend", ["blockwise"])
@pytest.mark.parametrize("n", [97, 1100])
def test_torch_compile_without_graph_breaks(n: int, backend: str, device: torch.device) -> None:
    """Traced through AOTAutograd (fake tensors, both directions) and run without code generation."""
    p = problem(n=n, k=1000, device=device, masked=True)
    expected = [x.clone().requires_grad_() for x in (p.queries, p.supports)]
    both(p, *expected, backend=backend, mask=p.options["mask"]).backward()
    actual = [x.clone().requires_grad_() for x in (p.queries, p.supports)]
    compiled = torch.compile(both, fullgraph=True, backend="aot_eager")
    compiled(p, *actual, backend=backend, mask=p.options["mask"]).backward()
    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.parametrize("name", ["snn", "nnd"])
def test_operators_are_registered_correctly(name: str) -> None:
    """torch's own checks of schema, fake implementation and autograd registration."""
    p = problem(n=9, k=12, masked=True)
    queries, supports = p.queries.requires_grad_(), p.supports.requires_grad_()
    options = 7, 0.1, 0.1, False, False, "blockwise"
    if name == "snn":  # without a mask: rows of the kept exponentials that nobody reads are never written
        torch.library.opcheck(torch.ops.nncsl.snn.default, (queries, supports, p.labels, None, *options, True))
    else:
        vectors = queries, supports, p.teacher_queries, p.teacher_supports
        arguments = *vectors, p.labels, p.options["mask"], *options, True, True, True
        torch.library.opcheck(torch.ops.nncsl.nnd.default, arguments)


@pytest.mark.parametrize("run", ["snn", "nnd"])
def test_second_derivatives_are_refused(run: str) -> None:
    p = problem(n=300, k=200)
    queries = p.queries.requires_grad_()
    if run == "snn":
        out = kernels.snn(queries, p.supports, p.labels).square().sum()
    else:
        out = kernels.nnd_loss(queries, p.supports, p.teacher_queries, p.teacher_supports, p.labels)
    (grad,) = torch.autograd.grad(out, queries, create_graph=True)
    with pytest.raises(RuntimeError, match=r"can be differentiated once.*backend='reference'"):
        grad.sum().backward()


def test_backward_twice_through_a_retained_graph() -> None:
    p = problem(n=300, k=200)
    queries = p.queries.requires_grad_()
    out = kernels.snn(queries, p.supports, p.labels).square().sum()
    first = torch.autograd.grad(out, queries, retain_graph=True)[0]
    assert torch.equal(first, torch.autograd.grad(out, queries)[0])


@pytest.mark.parametrize("backend", ["reference", "blockwise"])
def test_only_what_is_asked_for_is_differentiated(backend: str) -> None:
    p = problem(n=300, k=200)
    teacher = p.teacher_queries.requires_grad_(), p.teacher_supports.requires_grad_()
    supports = p.supports.requires_grad_()
    loss = kernels.nnd_loss(p.queries, supports, *teacher, p.labels, backend=backend)
    loss.backward()
    assert supports.grad is not None
    assert p.queries.grad is None
    assert all(x.grad is None for x in teacher)
    with torch.no_grad():
        same = kernels.nnd_loss(p.queries, supports, *teacher, p.labels, backend=backend)
    torch.testing.assert_close(same, loss.detach())


def test_student_equal_to_teacher_has_no_gradient() -> None:
    """The loss is then the teacher's entropy, its minimum."""
    p = problem(n=300, k=200, smoothing=0.1)
    same = Problem(p.queries, p.supports, p.queries, p.supports, p.labels, p.upstream, p.options)
    result = run_nnd(same, "blockwise")
    probabilities = kernels.snn(p.queries, p.supports, p.labels, **p.options)
    torch.testing.assert_close(result["output"], -(probabilities * probabilities.log()).sum(1).mean())
    assert result["queries.grad"].abs().max() < 1e-7


def test_importing_is_light() -> None:
    """Neither triton nor a compiler comes in, no device is touched, and torch is nearly all of the time."""
    code = (
        "import sys, time\n"
        "start = time.process_time()\n"
        "import torch\n"
        "middle = time.process_time()\n"
        "import kernels\n"
        "seconds, torch_seconds = time.process_time() - middle, middle - start\n"
        "assert 'triton' not in sys.modules and 'torch._dynamo' not in sys.modules, 'heavy imports'\n"
        "assert not torch.cuda.is_initialized()\n"
        "assert seconds < max(0.5, torch_seconds / 2), (seconds, torch_seconds)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
