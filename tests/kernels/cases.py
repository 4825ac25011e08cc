"""Problems to compare back ends on, and the rule of comparison.

Every result is compared with the fp64 reference on the same (rounded) inputs. Its error may be twice that of plain
eager torch at the same dtype, and a rounding or two. Eager's own error is a matter of luck where there are few
numbers, a loss being a single one. So it is the largest over several tellings of one problem that only rounding tells
apart: dims and supports in another order, vectors of another length.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from nncsl import kernels

VECTORS = "queries", "supports", "teacher_queries", "teacher_supports"
Results = dict[str, Tensor]


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
        return replace(self, **{name: getattr(self, name).to(dtype) for name in VECTORS})

    @property
    def temperature(self) -> float:
        return self.options.get("temperature", 0.1)

    @property
    def working_dtype(self) -> torch.dtype:
        return torch.promote_types(self.queries.dtype, torch.float32)


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


def with_near_teacher(p: Problem) -> Problem:
    """The first steps of a task: the loss is large, its gradient a small difference."""
    rng = torch.Generator().manual_seed(3)
    near = [x + (0.01 * torch.randn(x.shape, generator=rng)).to(x) for x in (p.queries, p.supports)]
    return replace(p, teacher_queries=near[0], teacher_supports=near[1])


def with_cross_entropy(p: Problem, smallest: float = 1e-8) -> Problem:
    """The gradient that arrives at probabilities o is -target / o: up to 1e8 for some entries and 1 for others."""
    exact = p.to(torch.float64)
    o = kernels.snn(exact.queries, exact.supports, p.labels, backend="reference", **p.options)
    least = torch.where(o <= smallest, torch.inf, o).argmin(1, keepdim=True)
    target = (
        torch.zeros_like(o).scatter_(1, least, 0.5).scatter_add_(1, o.argmax(1, keepdim=True), torch.full_like(o, 0.5))
    )
    grad = torch.where(target == 0, 0.0, -target / o / max(1, len(o)))
    return replace(p, upstream=grad.to(p.upstream))


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


def eager_in_other_words(run: Any, p: Problem, seed: int) -> Results:
    """Return eager's results of the same problem, with dims and supports in another order and vectors rescaled."""
    rng, device = torch.Generator().manual_seed(seed), p.queries.device
    dims, rows = (torch.randperm(size, generator=rng).to(device) for size in reversed(p.supports.shape))
    factors = [1 + torch.rand(len(getattr(p, name)), 1, generator=rng).to(device) for name in VECTORS]
    queries, supports, teacher_queries, teacher_supports = (
        (getattr(p, name).double() * factor).to(p.working_dtype) for name, factor in zip(VECTORS, factors, strict=True)
    )
    vectors = queries[:, dims], supports[rows][:, dims], teacher_queries, teacher_supports[rows]
    mask = p.options.get("mask")
    options = {**p.options, "mask": None if mask is None else mask[rows]}
    output, dq, ds = run(Problem(*vectors, p.labels[rows], p.upstream, options), "reference").values()
    dims, rows = dims.argsort(), rows.argsort()
    return {
        "output": output,
        "queries.grad": (dq[:, dims] * factors[0]).to(p.queries.dtype),
        "supports.grad": (ds[rows][:, dims] * factors[1]).to(p.supports.dtype),
    }


def largest(x: Tensor) -> float:
    return x.abs().max().item() if x.numel() else 0.0


def rounding(run: Any, p: Problem, exact: Results) -> dict[str, float]:
    """Return what two roundings are, also of results that are exactly 0: gradients are differences of two terms.

    Before the difference, a query's gradient is up to sum_c o_c |g_c| / temperature / length, for the gradient g that
    arrives at its probabilities o; for the distillation loss that sum is 1. In a support's the queries' roundings add.
    """
    arriving = torch.full((len(p.queries),), 3 / max(1, len(p.queries)))
    if run is run_snn:
        arriving = (exact["output"] * p.upstream).abs().sum(1)
    sizes = {"output": largest(exact["output"])}
    for name, term in (("queries", largest(arriving)), ("supports", arriving.norm().item())):
        lengths = getattr(p, name).double().norm(dim=1)
        inverse = largest(torch.where(lengths == 0, 0.0, 1 / lengths))
        sizes[f"{name}.grad"] = max(largest(exact[f"{name}.grad"]), term * inverse / p.temperature)
    return {name: 2 * torch.finfo(p.working_dtype).eps * size for name, size in sizes.items()}


def assert_as_good_as_eager(run: Any, p: Problem, backend: str) -> None:
    exact = run(p.to(torch.float64), "reference")
    few = p.queries.shape[0] * p.supports.shape[0] < 100_000
    eager = [run(p, "reference"), *(eager_in_other_words(run, p, seed) for seed in range(15 if few else 1))]
    ours, left = run(p, backend), rounding(run, p, exact)
    assert ours["output"].dtype == p.working_dtype
    for name, value in exact.items():
        assert ours[name].shape == value.shape
        eager_error = max(largest(found[name].double() - value) for found in eager)
        error, kind = largest(ours[name].double() - value), torch.finfo(ours[name].dtype)
        allowed = 2 * eager_error + left[name] + kind.smallest_normal * kind.eps  # the smallest number above 0
        if backend == "triton" and p.queries.is_cuda and p.queries.shape[1] > 128:
            allowed += 1e-2 * largest(value)  # wide fp32 vectors are multiplied as tf32
        assert error <= allowed, f"{name}: error {error:.2e}, allowed {allowed:.2e} (eager {eager_error:.2e})"
