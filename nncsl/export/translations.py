"""Two of torch's operators that its ONNX exporter does not know: iCaRL measures distances, CCIC sorts neighbors."""

from collections.abc import Callable
from typing import Any

import torch


def translations() -> dict[Callable, Callable]:
    """Return ONNX functions by torch's operators."""
    import onnxscript

    op: Any = onnxscript.opset18

    def distances(x1: Any, x2: Any, p: float, compute_mode: Any = None) -> Any:
        """Euclidean distances [n, m] of x1 [n, d] and x2 [m, d]."""
        assert p == 2
        apart = op.Sub(op.Unsqueeze(x1, [-2]), op.Unsqueeze(x2, [-3]))
        return op.Sqrt(op.ReduceSum(op.Mul(apart, apart), [-1], keepdims=0))

    def stable_sort(self: Any, stable: bool = True, dim: int = -1, descending: bool = False) -> Any:
        """Values and places along a dimension; TopK too has the first of equal ones first."""
        size = op.Gather(op.Shape(self), [dim])
        return op.TopK(self, size, axis=dim, largest=int(descending), sorted=1)

    return {torch.ops.aten._cdist_forward.default: distances, torch.ops.aten.sort.stable: stable_sort}
