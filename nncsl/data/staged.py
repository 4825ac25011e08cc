"""Views between the host's half of the work and the device's: what was prepared, and how it is rendered.

Everything random and everything that depends on sizes was settled in arrays; what is left are sums and look-ups.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nncsl.data import colors, crops
from nncsl.data.policy import ViewPolicy
from nncsl.transfer import constant

if TYPE_CHECKING:
    from nncsl.data.views import ViewParameters


class Change(NamedTuple):
    """An operation on some of the views: its name in `colors`, rows int64 [k], and its values float32 [k, 1, 1, 1]."""

    name: str
    rows: Any
    values: tuple[Any, ...]


class Chunk(NamedTuple):
    """What the host prepares of some views: arrays, or the same as tensors where they are to be rendered.

    place: which of the views; changes: of colors, in their order; blurred: rows int64 [k] and how to blur them.
    """

    place: slice
    crop: tuple[crops.Resampling, ...]
    changes: tuple[Change, ...]
    blurred: tuple[Any, tuple[crops.Matrix, ...]] | None


class Sheet(NamedTuple):
    """Views that are prepared on the host: kind, their number and channels, and the views in chunks."""

    kind: str
    shape: tuple[int, int]
    chunks: tuple[Chunk, ...]


def changes(parameters: "ViewParameters") -> tuple[Change, ...]:
    """Return the color operations in their order, each for the rows that drew it."""
    found = []

    def add(name: str, chosen: np.ndarray, *values: np.ndarray) -> None:
        if chosen.any():
            factors = tuple(value[chosen].astype(np.float32).reshape(-1, 1, 1, 1) for value in values)
            found.append(Change(name, chosen.nonzero()[0], factors))

    for stage in range(len(colors.JITTERS)):
        for number, name in enumerate(colors.JITTERS):
            add(name, parameters.jitter & (parameters.order[:, stage] == number), getattr(parameters, name))
    add("gray", parameters.gray)
    add("solarize", parameters.solarize < 256, parameters.solarize)
    add("equalize", parameters.equalize)
    return tuple(found)


def recolor(levels: Tensor, of_rows: tuple[Change, ...]) -> None:
    """Apply color operations in place; levels: [n, 3, size, size]. Rows that drew none cost nothing."""
    for name, rows, values in of_rows:
        levels.index_copy_(0, rows, getattr(colors, name)(levels.index_select(0, rows), *values))


@torch.no_grad()
def develop(chunk: Chunk, output: Tensor) -> None:
    """Render a chunk, whose arrays are tensors now, as integer levels into its place in output [n, C, size, size]."""
    levels = crops.sums(chunk.crop)
    recolor(levels, chunk.changes)
    if chunk.blurred is not None:
        rows, taps = chunk.blurred
        levels.index_copy_(0, rows, crops.weighted_sums(levels.index_select(0, rows), taps, taps))
    output[chunk.place] = levels


def render(sheet: Sheet, policy: ViewPolicy, device: torch.device) -> Tensor:
    """Return normalized float32 [n, C, size, size] from a sheet whose arrays have become tensors of the device."""
    output = empty(*sheet.shape, policy, sheet.kind, device)
    for chunk in sheet.chunks:
        develop(chunk, output)
    return normalize(output, policy)


def empty(count: int, channels: int, policy: ViewPolicy, kind: str, device: torch.device) -> Tensor:
    """Return room for views of a kind."""
    size = policy.crop(kind).size
    return torch.empty(count, channels, size, size, dtype=torch.float32, device=device)


def normalize(levels: Tensor, policy: ViewPolicy) -> Tensor:
    """Turn levels 0..255 [n, C, size, size] into what networks see, in place."""
    mean, std = (constant(values, levels.device, torch.float32)[:, None, None] for values in (policy.mean, policy.std))
    return levels.div_(255).sub_(mean).div_(std)
