"""A step that is thrown away: the method is again what it was before it."""

import torch
from torch import Tensor, nn


class Undo:
    """Keeps what passes of a phase's steps change, which is buffers: BatchNorm's statistics, above all.

    Parameters are not kept: that would take a second network. A step that has changed one can't be undone, nor can one
    that is shared by ranks, who would have to agree on it.
    """

    def __init__(self, method: nn.Module, *, alone: bool) -> None:
        self._alone = alone
        self._parameters, self._buffers = list(method.parameters()), list(method.buffers())
        self._kept = [torch.empty_like(buffer) for buffer in self._buffers]
        self._versions: list[int] = []

    def mark(self) -> None:
        """Remember this moment: a step begins."""
        _copy(self._kept, self._buffers)
        self._versions = self._counts()

    def possible(self) -> bool:
        """Tell whether the step can be undone so far."""
        return self._alone and self._versions == self._counts()

    def restore(self) -> None:
        """Go back to that moment."""
        _copy(self._buffers, self._kept)

    def _counts(self) -> list[int]:
        """How often each parameter was changed, as torch counts it for autograd."""
        return [parameter._version for parameter in self._parameters]


def _copy(targets: list[Tensor], sources: list[Tensor]) -> None:
    if targets:
        with torch.no_grad():
            torch._foreach_copy_(targets, sources)
