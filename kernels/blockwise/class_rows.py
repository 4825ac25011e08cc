"""How supports map to classes: which supports are used, and sums and look-ups by class.

Tensors [R, n] have one row per class. With fewer supports than classes only the classes that occur have a row,
so that nothing of size N x C is touched needlessly.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ..problem import Problem

Weights = tuple[Tensor, Tensor | None]
"""What a support's exponential is multiplied by for the gradient of its logit: by class [R, n], and a bias [n]."""


class ClassRows:
    """The rows of the classes of K used supports.

    used:    which supports are used (None: all of them).
    classes: the class of each row (None: row c is class c).
    labels:  [K] int64 row of each used support, or [K, C] float weights.
    count:   R, how many rows there are.
    """

    def __init__(self, problem: Problem, dtype: torch.dtype) -> None:
        self.used = None if problem.mask is None else problem.mask.nonzero().squeeze(1)
        labels, num_classes = self.only_used(problem.labels), problem.num_classes
        self.soft = labels.is_floating_point()
        self.classes: Tensor | None = None
        labels = labels.to(dtype) if self.soft else labels.long()
        if not self.soft and labels.shape[0] < num_classes:
            self.classes, labels = labels.unique(return_inverse=True)
        self.labels = labels
        self.num_classes = num_classes
        self.count = num_classes if self.classes is None else len(self.classes)
        self.num_supports, self.all_supports = labels.shape[0], problem.labels.shape[0]

    def only_used(self, x: Tensor) -> Tensor:
        """Return the rows of x that belong to used supports."""
        return x if self.used is None else x[self.used]

    def for_all(self, grad: Tensor | None) -> Tensor | None:
        """Return the gradient [K, D] of the used supports, if there is one, as one of all: zero for the others."""
        if grad is None or self.used is None:
            return grad
        return grad.new_zeros(self.all_supports, grad.shape[1]).index_copy_(0, self.used, grad)

    def _labels_of(self, start: int, stop: int) -> Tensor:
        """Return the labels of the supports from start to stop; of all without the price of a slice."""
        return self.labels if stop - start == self.num_supports else self.labels[start:stop]

    def add(self, mass: Tensor, values: Tensor, start: int, stop: int) -> None:
        """Add the values [k, n] of the supports from start to stop to the rows of their classes in mass [R, n]."""
        labels = self._labels_of(start, stop)
        if self.soft:
            mass.addmm_(labels.t(), values)
        elif values.device.type == "cpu":
            mass.index_add_(0, labels, values)
        else:  # index_add_ on other devices is atomic, hence not repeatable
            mass.addmm_(F.one_hot(labels, self.count).to(values.dtype).t(), values)

    def maximum(self, shift: Tensor, values: Tensor, start: int, stop: int) -> None:
        """Raise each class's row of shift [R, n] to its supports' largest value; with soft labels all share one row."""
        if self.soft:
            torch.maximum(shift, values.amax(0, keepdim=True), out=shift)
        else:
            shift.scatter_reduce_(0, self.labels[start:stop, None].expand_as(values), values, "amax")

    def logit_grad(self, values: Tensor, weights: Weights, start: int, stop: int, out: Tensor | None = None) -> Tensor:
        """Return the gradient [k, n] of the logits of the supports from start to stop, given their exponentials."""
        by_class, bias = weights
        labels = self._labels_of(start, stop)
        grad = torch.mm(labels, by_class, out=out) if self.soft else torch.index_select(by_class, 0, labels, out=out)
        if bias is not None:
            grad += bias
        return grad.mul_(values)

    def to_classes(self, by_row: Tensor, empty: float) -> Tensor:
        """Return [R, n] as contiguous [n, C]; classes without a row get `empty`."""
        if self.classes is None:
            return by_row.t().contiguous()
        full = by_row.new_full((by_row.shape[1], self.num_classes), empty)
        return full.index_copy_(1, self.classes, by_row.t())

    def from_classes(self, by_class: Tensor) -> Tensor:
        """Return [n, C] as contiguous [R, n]."""
        if self.classes is not None:
            by_class = by_class.index_select(1, self.classes)
        return by_class.t().contiguous()
