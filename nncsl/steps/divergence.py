"""A loss that is not a number any more, seen as soon as nobody has to wait for it."""

import math
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from nncsl.config import Config
from nncsl.errors import UserError
from nncsl.methods.base import Losses

# Steps after which a loss on a device is looked at, at the latest: enough for the host to be ahead of the device, few
# enough to stop soon. On a CPU there is nothing to wait for.
DELAY = 8


class DivergenceError(UserError):
    """The loss is not a number any more."""


class _Noted(NamedTuple):
    """values: the parts, and the total where it is no sum of theirs, on their way to the host; weights: of that sum.

    arrived: waits for the values, and for nothing later.
    """

    names: tuple[str, ...]
    values: Tensor
    weights: Mapping[str, float]
    arrived: Callable[[], None]
    where: str
    lr: float


class Lookout:
    """Takes every step's losses and looks at them ``delay`` steps later; a run that has diverged stops there.

    latest: by name, the parts that were looked at last. The last good checkpoint stays: :meth:`flush` comes before
    every new one.
    """

    def __init__(self, config: Config, folder: Path, device: torch.device, delay: int | None = None) -> None:
        self._config, self._folder = config, folder
        self._delay = (0 if device.type == "cpu" else DELAY) if delay is None else delay
        self._noted: deque[_Noted] = deque()
        self.latest: dict[str, float] = {}

    def note(self, losses: Losses, task: int, epoch: int, lr: float) -> None:
        """Send a step's losses to the host, and look at those that are due."""
        tensors, weights = list(losses.parts.values()), losses.minimized
        if isinstance(weights, Tensor):
            tensors, weights = [*tensors, weights], {}
        dtype = max((tensor.dtype for tensor in tensors), key=lambda dtype: dtype.itemsize)
        values = torch.stack([tensor.detach().to(dtype) for tensor in tensors])
        arriving = values.to("cpu", non_blocking=True)
        where = f"task {task + 1}, epoch {epoch + 1}"
        self._noted.append(_Noted(tuple(losses.parts), arriving, weights, _arrival(values.device), where, lr))
        while len(self._noted) > self._delay:
            self._look()

    def flush(self) -> None:
        """Look at everything that has been noted."""
        while self._noted:
            self._look()

    def _look(self) -> None:
        noted = self._noted.popleft()
        noted.arrived()
        values = noted.values.tolist()
        self.latest = dict(zip(noted.names, values, strict=False))
        total = (
            sum(weight * self.latest[name] for name, weight in noted.weights.items()) if noted.weights else values[-1]
        )
        if not math.isfinite(total):
            self._noted.clear()  # they come from the broken network
            shown = ", ".join(f"{name} {part:.4g}" for name, part in self.latest.items())
            raise diverged(
                self._config, self._folder, f"the loss is {total} in {noted.where} ({shown}; lr {noted.lr:.4g})"
            )


def diverged(config: Config, folder: Path, seen: str) -> DivergenceError:
    """Return the error that says what was seen, and what to try."""
    advice = "--set own.lr" if "lr" in config.own else "--set lr_peak, a longer --set warmup_epochs"
    precision = ", or --set precision=fp32" if config.precision != "fp32" else ""
    return DivergenceError(
        f"{seen}. The last good checkpoint is in {folder}. Start a new run with a lower {advice}{precision}"
    )


def _arrival(device: torch.device) -> Callable[[], None]:
    """Return what waits for the copies that were asked for so far."""
    if device.type != "cuda":
        return lambda: None
    event = torch.cuda.Event()
    event.record()
    return event.synchronize
