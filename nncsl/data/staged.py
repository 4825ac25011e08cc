"""Views between the host's half of the work and the device's: what was prepared, and how it is rendered.

Everything random and everything that depends on sizes was settled in arrays; what is left are sums and look-ups. A CPU
is its own host: there the squares are cut when they are prepared, and only their colors are left.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from nncsl.data import colors, crops, framed
from nncsl.data.blur import blur, gaussian_weights
from nncsl.data.policy import ViewPolicy
from nncsl.steps.transfer import constant

if TYPE_CHECKING:
    from nncsl.data.views import ViewParameters

# From this size on a CPU colors one view at a time: where a view is not selected from others, all happens in place.
_ALONE = 64
_OPERATIONS = {name: getattr(colors, name) for name in (*colors.JITTERS, "gray", "solarize", "equalize")}
_OPERATIONS["blur"] = blur


class Change(NamedTuple):
    """An operation on some of the views: its name, rows int64 [k], and its values, [k, ...] each."""

    name: str
    rows: Any
    values: tuple[Any, ...]


class Cut(NamedTuple):
    """Views that a CPU has cut: which of all, their squares uint8 [n, size, size, C], and what each one drew."""

    place: slice
    squares: Any
    parameters: "ViewParameters"


class Uncut(NamedTuple):
    """What the host prepares of some views for a GPU: arrays, or the same as tensors where they are to be rendered.

    place: which of the views; frame: pixels of black around them; rows, columns: int64 [n, size], where a view's own
    are in that, flipped ones in reverse; changes: of colors, in their order.
    """

    place: slice
    products: crops.Products
    frame: int
    rows: Any
    columns: Any
    changes: tuple[Change, ...]


class Sheet(NamedTuple):
    """Views that are prepared on the host: kind, their number and channels, and the views in chunks."""

    kind: str
    shape: tuple[int, int]
    chunks: tuple[Cut | Uncut, ...]


def _boxes(
    sizes: np.ndarray, parameters: "ViewParameters", size: int, frame: int | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return corners, extents and what they become, [n, 2] each: of the crop, or of the plain image in a frame."""
    if frame is not None:
        return np.zeros_like(sizes), sizes, framed.plain_shapes(sizes, size)
    extent = np.stack([parameters.height, parameters.width], axis=1)
    return np.stack([parameters.top, parameters.left], axis=1), extent, np.full_like(extent, size)


def cut(
    images: Tensor | np.ndarray,
    sizes: np.ndarray,
    parameters: "ViewParameters",
    policy: ViewPolicy,
    kind: str,
    place: slice,
) -> Cut:
    """Crop, resize and flip on a CPU."""
    size, frame = policy.crop(kind).size, policy.frame(kind)
    squares = crops.resize(images, *_boxes(sizes, parameters, size, frame), size)
    if frame is not None:
        squares = framed.cut(squares, parameters.top, parameters.left, frame)
    found = squares.numpy()
    flipped = parameters.flip.nonzero()[0]
    found[flipped] = found[flipped][:, :, ::-1]
    return Cut(place, found, parameters)


def uncut(
    images: Tensor | np.ndarray,
    sizes: np.ndarray,
    parameters: "ViewParameters",
    policy: ViewPolicy,
    kind: str,
    place: slice,
) -> Uncut:
    """Prepare the same for another device."""
    size, frame = policy.crop(kind).size, policy.frame(kind)
    products = crops.prepare(images, *_boxes(sizes, parameters, size, frame), size)
    along = np.arange(size)
    columns = np.where(parameters.flip[:, None], along[::-1], along)
    rows = np.broadcast_to(along, columns.shape)
    if frame is not None:
        rows, columns = parameters.top[:, None] + rows, parameters.left[:, None] + columns
    return Uncut(place, products, frame or 0, rows, columns, changes(parameters, images.shape[3], size))


def changes(parameters: "ViewParameters", channels: int, size: int) -> tuple[Change, ...]:
    """Return the operations on levels [n, C, size, size] in their order, each for the rows that drew it."""
    found, p = [], parameters

    def add(name: str, chosen: np.ndarray, *values: np.ndarray) -> None:
        if chosen.any():
            factors = tuple(value[chosen].astype(np.float32).reshape(-1, 1, 1, 1) for value in values)
            found.append(Change(name, chosen.nonzero()[0], factors))

    if channels == 3:
        for stage in p.order.T:
            for number, name in enumerate(colors.JITTERS):
                add(name, p.jitter & (stage == number), getattr(p, name))
        add("gray", p.gray)
        add("solarize", p.solarize < 256, p.solarize)
        add("equalize", p.equalize)
    blurred = p.blur.nonzero()[0]
    if len(blurred):
        found.append(Change("blur", blurred, (gaussian_weights(p.blur[blurred], size - 1),)))
    return tuple(found)


@torch.no_grad()
def develop(chunk: Cut | Uncut, policy: ViewPolicy, output: Tensor) -> None:
    """Render a chunk, whose arrays are tensors now, into its place in output [n, C, size, size]."""
    mean, std = (constant(values, output.device, torch.float32)[:, None, None] for values in (policy.mean, policy.std))
    if isinstance(chunk, Cut):
        for levels in _colored(chunk, output[chunk.place]):
            levels.div_(255).sub_(mean).div_(std)
        return
    levels = crops.sums(chunk.products)
    channels, size = levels.shape[1:3]
    if chunk.frame:
        levels = F.pad(levels, (chunk.frame,) * 4)
        levels = levels.gather(2, chunk.rows[:, None, :, None].expand(-1, channels, -1, levels.shape[3]))
    levels = levels.gather(3, chunk.columns[:, None, None, :].expand(-1, channels, size, -1))
    for name, rows, values in chunk.changes:
        levels.index_copy_(0, rows, _OPERATIONS[name](levels.index_select(0, rows), *values))
    torch.sub(levels.div_(255), mean, out=output[chunk.place]).div_(std)


def _colored(chunk: Cut, output: Tensor) -> list[Tensor]:
    """Color squares in the output's own memory [n, C, size, size], on a CPU; return it in the parts that were taken."""
    count, channels, size, _ = output.shape
    output.copy_(chunk.squares.permute(0, 3, 1, 2))
    found = changes(chunk.parameters, channels, size)
    if size < _ALONE:
        for name, drew, values in found:
            given = [torch.from_numpy(value) for value in values]
            if len(drew) == count:
                _OPERATIONS[name](output, *given)
            else:  # numpy copies rows four to thirty times faster than index_copy_
                selected = _OPERATIONS[name](output.index_select(0, torch.from_numpy(drew)), *given)
                output.numpy()[drew] = selected.numpy()
        return [output]
    steps: list[list[tuple[str, list[np.ndarray]]]] = [[] for _ in range(count)]
    for name, drew, values in found:
        for place, row in enumerate(drew.tolist()):
            own = [value[place : place + 1] for value in values]
            steps[row].append((name, [_narrow(value) for value in own] if name == "blur" else own))
    for levels, drawn in zip(output.split(1), steps, strict=True):
        for name, own in drawn:
            _OPERATIONS[name](levels, *map(torch.from_numpy, own))
    return list(output.split(1))


def _narrow(weights: np.ndarray) -> np.ndarray:
    """Return one view's weights [1, taps] of a blur without the zeros that only others' wider ones need."""
    used = np.flatnonzero(weights[0])
    cut = min(used[0], weights.shape[1] - 1 - used[-1])
    return np.ascontiguousarray(weights[:, cut : weights.shape[1] - cut])


def render(sheet: Sheet, policy: ViewPolicy, device: torch.device) -> Tensor:
    """Return normalized float32 [n, C, size, size] from a sheet whose arrays have become tensors of the device."""
    output = empty(*sheet.shape, policy, sheet.kind, device)
    for chunk in sheet.chunks:
        develop(chunk, policy, output)
    return output


def empty(count: int, channels: int, policy: ViewPolicy, kind: str, device: torch.device) -> Tensor:
    """Return room for views of a kind."""
    size = policy.crop(kind).size
    return torch.empty(count, channels, size, size, dtype=torch.float32, device=device)
