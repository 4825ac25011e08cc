"""Who is compared: plain torch, torch.compile, scaled_dot_product_attention with one-hot values, and this package."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from nncsl import kernels

TEMPERATURE = 0.1


@dataclass(frozen=True)
class Problem:
    """One setup, shared by speed and memory."""

    kernel: str  # "snn" or "nnd"
    queries: Tensor
    supports: Tensor
    teacher_queries: Tensor
    teacher_supports: Tensor
    labels: Tensor
    num_classes: int
    upstream: Tensor

    @property
    def flops(self) -> dict[str, float]:
        """The least one could do: one product of queries and supports, two in the backward (nnd: and the teacher's)."""
        product = 2.0 * self.queries.shape[0] * self.supports.shape[0] * self.queries.shape[1]
        forward = product * (2 if self.kernel == "nnd" else 1)
        return {"forward": forward, "backward": 2 * product, "full": forward + 2 * product}


def problem(kernel: str, n: int, k: int, classes: int, dim: int, device: str, dtype: torch.dtype) -> Problem:
    rng = torch.Generator().manual_seed(0)

    def vectors(rows: int) -> Tensor:
        return torch.randn(rows, dim, generator=rng).to(device, dtype)

    labels = torch.randint(0, classes, (k,), generator=rng).to(device)
    queries, supports = vectors(n).requires_grad_(), vectors(k).requires_grad_()
    teachers = (vectors(n), vectors(k)) if kernel == "nnd" else (queries.detach()[:0], queries.detach()[:0])
    upstream = torch.tensor(1.0) if kernel == "nnd" else torch.randn(n, classes, generator=rng)
    return Problem(kernel, queries, supports, *teachers, labels, classes, upstream.to(device))


def _eager_snn(queries: Tensor, supports: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    similarity = F.normalize(queries.float(), dim=1) @ F.normalize(supports.float(), dim=1).t() / TEMPERATURE
    return torch.softmax(similarity, dim=1) @ F.one_hot(labels, num_classes).float()


def _eager_nnd(
    queries: Tensor, supports: Tensor, teacher_queries: Tensor, teacher_supports: Tensor, labels: Tensor, classes: int
) -> Tensor:
    with torch.no_grad():
        target = _eager_snn(teacher_queries, teacher_supports, labels, classes)
    return -(target * (_eager_snn(queries, supports, labels, classes) + 1e-8).log()).sum(1).mean()


def _sdpa_snn(queries: Tensor, supports: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """The fused attention kernels want keys and values of one width: pad both to the wider."""
    width = max(queries.shape[1], num_classes)
    q, s = (F.pad(F.normalize(x.float(), dim=1), (0, width - x.shape[1])) for x in (queries, supports))
    one_hot = torch.zeros(supports.shape[0], width, device=q.device)
    one_hot[torch.arange(supports.shape[0], device=q.device), labels] = 1
    out = F.scaled_dot_product_attention(q[None, None], s[None, None], one_hot[None, None], scale=1 / TEMPERATURE)
    return out[0, 0, :, :num_classes]


def _call(p: Problem, snn: Callable[..., Tensor], nnd: Callable[..., Tensor]) -> Tensor:
    if p.kernel == "snn":
        return snn(p.queries, p.supports, p.labels, p.num_classes)
    return nnd(p.queries, p.supports, p.teacher_queries, p.teacher_supports, p.labels, p.num_classes)


def _ours_snn(queries: Tensor, supports: Tensor, labels: Tensor, classes: int) -> Tensor:
    return kernels.snn(queries, supports, labels, num_classes=classes, temperature=TEMPERATURE)


def _ours_nnd(*tensors: Tensor) -> Tensor:
    *inputs, classes = tensors
    return kernels.nnd_loss(*inputs, num_classes=classes, temperature=TEMPERATURE)  # type: ignore[arg-type]


def providers(kernel: str, names: list[str]) -> dict[str, Callable[[Problem], Tensor]]:
    """Fresh ones per problem: compiled code is specialized to its shapes, which is its best case."""
    everyone: dict[str, Callable[[Problem], Tensor]] = {
        "eager": lambda p: _call(p, _eager_snn, _eager_nnd),
        "kernels": lambda p: _call(p, _ours_snn, _ours_nnd),
    }
    if kernel == "snn":
        everyone["sdpa"] = lambda p: _call(p, _sdpa_snn, _eager_nnd)
    if "compile" in names:
        torch.compiler.reset()
        compiled = torch.compile(_eager_snn, dynamic=False), torch.compile(_eager_nnd, dynamic=False)
        everyone["compile"] = lambda p: _call(p, *compiled)
    return {name: everyone[name] for name in names if name in everyone}
