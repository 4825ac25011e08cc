"""Does fusing the SNN objective pay? Plain torch on top of `kernels.snn`, against a hand-written value and gradient.

The objective (cross-entropy with sharpened targets of the other view, plus the entropy of the mean prediction)
works on probabilities [views, C] only: however it is written, nothing of size N x K is in it. So fusing can save
at most the difference between "plain" and "snn alone" below.

python -m nncsl.benchmarks.kernels_snn_loss
"""

import statistics
import time
from typing import Any

import torch
from torch import Tensor

from nncsl import kernels
from nncsl.kernels import reference
from nncsl.kernels.objective import Objective

SMALL_VIEWS, POWER = 2, 4.0


def plain(p: Tensor) -> Tensor:
    return torch.stack(reference.objective(p.log(), SMALL_VIEWS, POWER)).sum()


def fused(p: Tensor) -> Tensor:
    return torch.stack(Objective.apply(p, SMALL_VIEWS, POWER, True)[:2]).sum()


def main() -> int:
    torch.set_num_threads(1)
    rng = torch.Generator().manual_seed(0)
    print("  K    C | full step, ms: snn alone   plain   fused | fused is faster by | at most possible")
    for k, classes in ((20, 2), (20, 10), (100, 10), (600, 100)):
        queries = torch.randn(1024, 128, generator=rng).requires_grad_()
        supports = torch.randn(k, 128, generator=rng).requires_grad_()
        labels = torch.arange(k) % classes
        upstream = torch.randn(1024, classes, generator=rng)

        def run(objective: Any, inputs: tuple[Any, ...] = (queries, supports, labels, classes, upstream)) -> float:
            q, s, y, c, given = inputs
            q.grad = s.grad = None
            start = time.perf_counter()
            p = kernels.snn(q, s, y, num_classes=c, smoothing=0.1)
            if objective is None:
                p.backward(given)
            else:
                objective(p).backward()
            return (time.perf_counter() - start) * 1e3

        times: dict[Any, list[float]] = {None: [], plain: [], fused: []}
        for _ in range(200):
            for objective, values in times.items():
                values.append(run(objective))
        alone, unfused, ours = (statistics.median(values) for values in times.values())
        times_text = f"{alone:24.2f} {unfused:7.2f} {ours:7.2f}"
        print(f"{k:4} {classes:4} | {times_text} | {unfused / ours:17.2f}x | {unfused / alone:15.2f}x")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
