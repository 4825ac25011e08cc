"""Problems to compare back ends on, and the rule of comparison.

Every result is compared with the fp64 reference on the same (rounded) inputs. Its error may be twice that of
plain eager torch at the same dtype, plus an absolute tolerance stated per back end and dtype.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from nncsl import kernels

# Relative to the largest exact entry.
ATOL = {
    ("blockwise", torch.float32): 2e-6,
    ("blockwise", torch.float16): 2e-6,
    ("blockwise", torch.bfloat16): 2e-6,
    ("blockwise", torch.float64): 1e-12,
    ("triton", torch.float32): 1e-5,
    ("triton", torch.float16): 1e-5,
    ("triton", torch.bfloat16): 1e-5,
}


@dataclass(frozen=True)
class Problem:
    """Tensors of one call; `upstream` is the gradient that arrives at the output."""

    queries: Tensor
    supports: Tensor
    teacher_queries: Tensor
    teacher_supports: Tensor
    labels: Tensor
    upstream: Tensor
    options: dict[str, Any] = field(default_factory=dict)

    def to(self, dtype: torch.dtype) -> "Problem":
        names = "queries", "supports", "teacher_queries", "teacher_supports"
        return replace(self, **{name: getattr(self, name).to(dtype) for name in names})


def problem(
    n: int = 97,
    k: int = 61,
    classes: int = 7,
    dim: int = 32,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    soft: bool = False,
    masked: bool = False,
    seed: int = 0,
    **options: Any,
) -> Problem:
    """Vectors of various lengths around one center per class, so that probabilities are neither flat nor one-hot."""
    rng = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    labels = torch.randint(0, classes, (k,), generator=rng)
    centers = normal(classes, dim)
    queries = centers[torch.randint(0, classes, (n,), generator=rng)] + 2 * normal(n, dim)
    supports = 3 * (centers[labels] + 2 * normal(k, dim))
    teacher_queries, teacher_supports = queries + normal(n, dim), supports + 3 * normal(k, dim)
    vectors = [x.to(device, dtype) for x in (queries, supports, teacher_queries, teacher_supports)]
    if soft:
        labels = torch.rand(k, classes, generator=rng, dtype=torch.float64).to(torch.float32)
    if masked:
        mask = torch.rand(k, generator=rng) < 0.6
        mask[-1] = True
        options["mask"] = mask.to(device)
    upstream = normal(n, classes).to(device, torch.float32)
    return Problem(*vectors, labels.to(device), upstream, {"num_classes": classes, **options})


def run_snn(p: Problem, backend: str) -> dict[str, Tensor]:
    queries, supports = p.queries.clone().requires_grad_(), p.supports.clone().requires_grad_()
    out = kernels.snn(queries, supports, p.labels, backend=backend, **p.options)
    (out * p.upstream).sum().backward()
    return _results(out, queries, supports)


def run_nnd(p: Problem, backend: str) -> dict[str, Tensor]:
    queries, supports = p.queries.clone().requires_grad_(), p.supports.clone().requires_grad_()
    teacher = p.teacher_queries, p.teacher_supports
    out = kernels.nnd_loss(queries, supports, *teacher, p.labels, backend=backend, **p.options)
    (out * 3).backward()
    return _results(out, queries, supports)


def _results(out: Tensor, queries: Tensor, supports: Tensor) -> dict[str, Tensor]:
    assert queries.grad is not None
    assert supports.grad is not None
    assert queries.grad.dtype == queries.dtype
    assert supports.grad.dtype == supports.dtype
    return {"output": out.detach(), "queries.grad": queries.grad, "supports.grad": supports.grad}


def assert_as_good_as_eager(run: Any, p: Problem, backend: str) -> None:
    exact = run(p.to(torch.float64), "reference")
    eager, ours = run(p, "reference"), run(p, backend)
    wanted_dtype = torch.float64 if p.queries.dtype == torch.float64 else torch.float32
    assert ours["output"].dtype == wanted_dtype
    atol = ATOL[backend, p.queries.dtype]
    if backend == "triton" and p.queries.is_cuda and p.queries.shape[1] > 128:
        atol = 1e-2  # wide fp32 vectors are multiplied as tf32
    for name, value in exact.items():
        # An exact zero may come out as rounding noise, which gradients divide by the temperature.
        size = max(value.abs().max().item(), 0.1, 0.01 / p.options.get("temperature", 0.1))
        eager_error = (eager[name].double() - value).abs().max().item()
        error = (ours[name].double() - value).abs().max().item()
        allowed = 2 * eager_error + atol * size
        assert error <= allowed, f"{name}: error {error:.2e}, allowed {allowed:.2e} (eager {eager_error:.2e})"
