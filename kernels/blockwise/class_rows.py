"""How supports map to classes: which supports are used, and sums and look-ups by class.

Tensors [R, n] have one row per class. With fewer supports than classes only the classes that occur have a row,
so that nothing of size N x C is touched needlessly.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


class ClassRows:
    """The rows of the classes of K used supports.

    used:    which supports are used (None: all of them).
    classes: the class of each row (None: row c is class c).
    labels:  [K] int64 row of each used support, or [K, C] float weights.
    """

    def __init__(self, labels: Tensor, mask: Tensor | None, num_classes: int, dtype: torch.dtype) -> None:
        self.used = None if mask is None else mask.nonzero().squeeze(1)
        labels = labels if self.used is None else labels[self.used]
        self.soft = labels.is_floating_point()
        self.classes: Tensor | None = None
        if self.soft:
            labels = labels.to(dtype)
        elif labels.shape[0] < num_classes:
            self.classes, labels = labels.unique(return_inverse=True)
        self.labels = labels
        self.num_classes = num_classes
        self.count = num_classes if self.classes is None else len(self.classes)
        self.num_supports = labels.shape[0]

    def add(self, mass: Tensor, values: Tensor, start: int, stop: int) -> None:
        """Add the values [k, n] of the supports from start to stop to the rows of their classes in mass [R, n]."""
        labels = self.labels[start:stop]
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

    def spread(self, weights: Tensor, start: int, stop: int, out: Tensor | None = None) -> Tensor:
        """Return the weights [R, n] of each support's class: [k, n]."""
        labels = self.labels[start:stop]
        if self.soft:
            return torch.mm(labels, weights, out=out)
        return torch.index_select(weights, 0, labels, out=out)

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
