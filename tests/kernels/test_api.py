"""What users of such packages expect: batches, prepared supports, one loss per query."""

from typing import Any

import pytest
import torch

from nncsl import kernels
from tests.kernels.cases import problem

BACKENDS = ["reference", "blockwise", "triton"]
pytest.importorskip("triton")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("k", "options"), [(12, {}), (12, {"temperature": 0.01}), (700, {"smoothing": 0.1})])
def test_one_loss_per_query(backend: str, k: int, options: dict[str, Any], triton_device: torch.device) -> None:
    p = problem(n=6, k=k, dim=16, device=triton_device, masked=True, **options)
    vectors = p.queries.requires_grad_(), p.supports.requires_grad_(), p.teacher_queries, p.teacher_supports
    losses = kernels.nnd_loss(*vectors, p.labels, reduction="none", backend=backend, **p.options)
    mean = kernels.nnd_loss(*vectors, p.labels, backend="reference", **p.options)
    torch.testing.assert_close(losses.mean(), mean, rtol=1e-4, atol=1e-5)
    weights = torch.arange(6.0, device=triton_device)
    found = torch.autograd.grad((losses * weights).sum(), vectors[:2])
    exact = kernels.nnd_loss(*vectors, p.labels, reduction="none", backend="reference", **p.options)
    expected = torch.autograd.grad((exact * weights).sum(), vectors[:2])
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def test_unknown_reduction() -> None:
    p = problem(n=4, k=6)
    with pytest.raises(ValueError, match="reduction must be 'mean' or 'none', got 'sum'"):
        kernels.nnd_loss(p.queries, p.supports, p.teacher_queries, p.teacher_supports, p.labels, reduction="sum")


@pytest.mark.parametrize("backend", ["reference", "blockwise"])
def test_leading_dimensions(backend: str) -> None:
    p, other = problem(n=5, k=8), problem(n=5, k=8, seed=1)
    options = {**p.options, "backend": backend}
    queries, supports, labels = (torch.stack([getattr(x, name) for x in (p, other)])[None] for name in
                                 ("queries", "supports", "labels"))  # fmt: skip
    teachers = p.teacher_queries.expand(1, 2, 5, 32), p.teacher_supports
    each = [kernels.snn(x.queries, x.supports, x.labels, **options) for x in (p, other)]
    torch.testing.assert_close(kernels.snn(queries, supports, labels, **options), torch.stack(each)[None])
    shared = [kernels.snn(x.queries, p.supports, p.labels, **options) for x in (p, other)]
    torch.testing.assert_close(kernels.snn(queries, p.supports, p.labels, **options), torch.stack(shared)[None])
    losses = [kernels.nnd_loss(x.queries, x.supports, p.teacher_queries, p.teacher_supports, x.labels, **options)
              for x in (p, other)]  # fmt: skip
    both = kernels.nnd_loss(queries, supports, *teachers, labels, **options)
    torch.testing.assert_close(both, sum(losses) / 2)
    rows = kernels.nnd_loss(queries, supports, *teachers, labels, reduction="none", **options)
    assert rows.shape == (1, 2, 5)
    with pytest.raises(ValueError, match=r"supports must have leading dimensions \[1, 2\] or none, got \[3\]"):
        kernels.snn(queries, p.supports.expand(3, 8, 32), p.labels, **options)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("k", [12, 700])
def test_prepared_supports(backend: str, k: int, triton_device: torch.device) -> None:
    p = problem(n=8, k=k, dim=16, device=triton_device, masked=True)
    ready = kernels.prepare(p.supports, p.labels, **p.options)
    queries = p.queries.requires_grad_()
    results = []
    for arguments, options in (((p.supports, p.labels), p.options), ((ready,), {})):
        out = kernels.snn(queries, *arguments, backend=backend, **options)
        loss = kernels.snn_loss(queries, *arguments, backend=backend, smoothing=0.1, **options)
        (grad,) = torch.autograd.grad((out * p.upstream).sum() + loss.cross_entropy + loss.minus_entropy, queries)
        results.append((out, *loss, grad))
    for plain, prepared in zip(*results, strict=True):
        torch.testing.assert_close(prepared, plain, rtol=1e-4, atol=1e-5)


def test_what_can_not_be_prepared() -> None:
    p = problem(n=4, k=6)
    with pytest.raises(ValueError, match="supports must not require grad"):
        kernels.prepare(p.supports.clone().requires_grad_(), p.labels)
    with pytest.raises(ValueError, match=r"labels must be in \[0, 3\)"):
        kernels.prepare(p.supports, p.labels + 3, num_classes=3)
    with pytest.raises(ValueError, match="labels, mask and num_classes belong to `prepare`"):
        kernels.snn(p.queries, kernels.prepare(p.supports, p.labels), p.labels)
