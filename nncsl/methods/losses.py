"""What a method's losses are to the loop: parts, what is minimized of them, and what the views are taken for."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from nncsl import objectives
from nncsl.steps.transfer import constant


@dataclass(frozen=True)
class Losses:
    """What a step minimizes, and what is recorded of it.

    minimized: a loss, or the weight of each part in it. Weights start no operation on a device: they are the gradients
    that the backward pass begins with. parts: for the record. guesses: by group, the class that each view is taken for
    [n], as its place in ``among`` where that is given.
    """

    minimized: Tensor | Mapping[str, float]
    parts: dict[str, Tensor]
    guesses: dict[str, Tensor] = field(default_factory=dict)
    among: tuple[int, ...] = ()

    @property
    def total(self) -> Tensor:
        """What is minimized, as one number."""
        if isinstance(self.minimized, Tensor):
            return self.minimized
        total: Tensor | None = None
        for name, weight in self.minimized.items():
            total = objectives.plus(total, self.parts[name], weight)
        assert total is not None
        return total

    def backward(self, scaler: torch.amp.GradScaler) -> None:
        """Add the gradients of what is minimized to those of the parameters."""
        if isinstance(self.minimized, Tensor):
            scaler.scale(self.minimized).backward()  # type: ignore[no-untyped-call]
            return
        parts = {name: self.parts[name] for name in self.minimized if self.parts[name].requires_grad}
        device = next(iter(parts.values())).device
        weights = scaler.scale(constant(tuple(self.minimized[name] for name in parts), device, torch.float32))
        starts = [weight.to(part.dtype) for weight, part in zip(weights.unbind(), parts.values(), strict=True)]
        torch.autograd.backward(list(parts.values()), starts)

    def detached(self) -> "Losses":
        """Return the same without what the backward pass needed."""
        minimized = self.minimized.detach() if isinstance(self.minimized, Tensor) else self.minimized
        return replace(self, minimized=minimized, parts={name: part.detach() for name, part in self.parts.items()})
