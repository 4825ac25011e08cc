"""How supports map to classes, for the streaming back ends: which rows are used, and sums and look-ups by class.

A tensor "by slot" has one row per class that can occur. With fewer supports than classes the slots are the
classes that do occur, so that nothing of size N x C is touched needlessly.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


class Slots:
    """The class structure of K used supports; everything by slot is laid out [slots, queries].

    rows:    which supports are used (None: all of them).
    classes: the class of each slot (None: slot == class).
    labels:  [K] int64 slot of each used support, or [K, C] float weights.
    """

    def __init__(self, labels: Tensor, mask: Tensor | None, num_classes: int, dtype: torch.dtype) -> None:
        self.rows = None if mask is None else mask.nonzero().squeeze(1)
        labels = labels if self.rows is None else labels[self.rows]
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
        """mass[slot] += the sum of the rows of values [k, n] with that slot; k supports from start to stop."""
        labels = self.labels[start:stop]
        if self.soft:
            mass.addmm_(labels.t(), values)
        elif values.device.type == "cpu":
            mass.index_add_(0, labels, values)
        else:  # index_add_ on other devices is atomic, hence not repeatable
            mass.addmm_(F.one_hot(labels, self.count).to(values.dtype).t(), values)

    def maximum(self, shift: Tensor, values: Tensor, start: int, stop: int) -> None:
        """shift[slot] = max(shift[slot], rows of that slot); soft labels have no slots and share one row."""
        if self.soft:
            torch.maximum(shift, values.amax(0, keepdim=True), out=shift)
        else:
            shift.scatter_reduce_(0, self.labels[start:stop, None].expand_as(values), values, "amax")

    def spread(self, weights: Tensor, start: int, stop: int, out: Tensor | None = None) -> Tensor:
        """The weights [slots, n] of each support's class, as rows [k, n]."""
        labels = self.labels[start:stop]
        if self.soft:
            return torch.mm(labels, weights, out=out)
        return torch.index_select(weights, 0, labels, out=out)

    def to_classes(self, by_slot: Tensor, empty: float) -> Tensor:
        """[slots, n] -> contiguous [n, C]; classes without a slot get `empty`."""
        if self.classes is None:
            return by_slot.t().contiguous()
        full = by_slot.new_full((by_slot.shape[1], self.num_classes), empty)
        return full.index_copy_(1, self.classes, by_slot.t())

    def from_classes(self, by_class: Tensor) -> Tensor:
        """[n, C] -> contiguous [slots, n]."""
        if self.classes is not None:
            by_class = by_class.index_select(1, self.classes)
        return by_class.t().contiguous()
