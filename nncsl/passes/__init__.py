"""How a batch goes through the network: at once, with blocks recomputed, or in micro-batches. The gradient is the same.

What autograd keeps for the backward pass is most of a run's memory. Here the forward pass keeps inputs only and the
backward pass computes the rest again, so that a step's losses, and the loop around them, need not know of it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from nncsl.interruption import heed
from nncsl.networks import Network, Outputs

# Images [n, C, H, W] (what `together` gives) to their features and projections.
Forward = Callable[[Any], Outputs]
Spill = Literal["device", "host", "disk"]
Piece = Callable[[Tensor], tuple[Tensor, ...]]
T = TypeVar("T")
_BatchNorm = nn.modules.batchnorm._BatchNorm


@dataclass(frozen=True)
class Passes:
    """How memory is traded for time. micro_batch: images with activations at once, 0 for all of them.

    recompute: keep block inputs only. spill: where a micro-batched pass with training BatchNorm keeps what it has to
    keep of the whole batch; folder: where that file goes.
    """

    micro_batch: int = 0
    recompute: bool = False
    spill: Spill = "device"
    folder: Path = field(default_factory=Path)


def forward(network: Network, passes: Passes) -> Forward:
    """The network's forward pass with the memory that ``passes`` allows; outputs and gradients stay the same.

    With frozen BatchNorm images are independent, so micro-batches change nothing. With training BatchNorm every
    layer's statistics are those of the whole batch: see :mod:`nncsl.passes.batchnorm`. A backbone that trains BatchNorm
    in places that are not known takes the whole batch: :mod:`nncsl.passes.limits` says so beforehand.
    """
    if network.frozen:  # its maps are not kept for a backward pass that never reaches them
        return lambda images: network.project(in_parts(network.features, images, passes.micro_batch))
    whole: Forward = (lambda images: _recomputed(network, images)) if passes.recompute else network
    if not passes.micro_batch:
        return whole
    from nncsl.passes import batchnorm

    def in_micro_batches(images: Tensor) -> Outputs:
        if trains_batchnorm(network):  # asked in every pass: a method may change modes within a step
            if not network.divided and trains_batchnorm(network.blocks):
                return whole(images)
            return batchnorm.forward(network, [images], passes)
        return Outputs(*_replay(whole, network, images, passes.micro_batch))

    return in_micro_batches


def together(pixels: Mapping[str, Tensor], names: Sequence[str]) -> Any:
    """Return groups of images of one size as one batch for a pass: a tensor, or this process's share of the rows."""
    if hasattr(pixels, "share"):  # a batch that is run in units
        return pixels.share(names)
    return pixels[names[0]] if len(names) == 1 else torch.cat([pixels[name] for name in names])


def answers(pixels: Mapping[str, Tensor], name: str, rows: np.ndarray, answer: Callable[[Tensor], Tensor]) -> Tensor:
    """Return ``answer`` on the chosen rows (bool [n]) of a group, without gradient."""
    if hasattr(pixels, "answers"):
        return pixels.answers(name, rows, answer)
    return answer(pixels[name][torch.from_numpy(rows).to(pixels[name].device)])


def in_parts(answer: Callable[[Tensor], Tensor], images: Tensor, size: int) -> Tensor:
    """``answer`` on ``size`` images at a time (0: on all of them), for passes without gradient."""
    if not size or len(images) <= size:
        return answer(images)
    return torch.cat([_heeding(answer, part) for part in images.split(size)])


def inference_batch(network: Network, size: int) -> int:
    """Images per pass of sweeps and evaluation: few enough to need less memory than training does.

    As many as make a first map, the largest of all, of 8 MiB: small networks would spend their time on calls otherwise.
    It depends on network and image size alone, whatever the training batch is, so that the stored bits do not either.
    """
    channels, side = 64, size // 2  # as in an ImageNet stem, where nobody knows what the backbone begins with
    if network.divided:
        first = next(module for module in network.stem if isinstance(module, nn.Conv2d))
        side = (size + 2 * int(first.padding[0]) - first.kernel_size[0]) // first.stride[0] + 1
        channels = first.out_channels
    return min(256, max(16, 2**21 // (channels * side**2)))


def trains_batchnorm(network: nn.Module) -> bool:
    """Tell whether images of a batch meet: in any BatchNorm that takes its statistics from them."""
    return any(module.training for module in network.modules() if isinstance(module, _BatchNorm))


def _recomputed(network: Network, images: Tensor) -> Outputs:
    x = network.prepare(images)
    for piece in (network.stem, *network.blocks) if network.divided else network.blocks:
        (x,) = _replay(lambda part, piece=piece: (piece(part),), piece, x, len(x) or 1)  # type: ignore[misc]
    return network.project(network.pool(x))


def _replay(piece: Piece, owner: nn.Module, x: Tensor, size: int) -> tuple[Tensor, ...]:
    # Autograd skips a function none of whose inputs need a gradient; the images don't, so a parameter goes along.
    return _Replay.apply(piece, owner, size, x, next(owner.parameters()))  # type: ignore[no-any-return]


class _Replay(torch.autograd.Function):
    """Runs ``piece`` on parts of x without a graph; the backward pass runs each part again, with one."""

    @staticmethod
    def forward(ctx: Any, piece: Piece, owner: nn.Module, size: int, x: Tensor, anchor: Tensor) -> tuple[Tensor, ...]:
        ctx.piece, ctx.owner, ctx.size = piece, owner, size
        ctx.autocast = autocast_state(x.device)
        ctx.save_for_backward(x)
        # A loss that ignores an output sends no gradient into it: the parameters behind it must see none, not zeros.
        ctx.set_materialize_grads(False)
        parts = [_heeding(piece, part) for part in x.split(size)]
        return tuple(parts[0]) if len(parts) == 1 else tuple(map(torch.cat, zip(*parts, strict=True)))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        wanted = [k for k, gradient in enumerate(gradients) if gradient is not None]
        collected = []
        with statistics_untouched(ctx.owner):
            for start in range(0, max(1, len(x)) if wanted else 0, ctx.size):  # no images: gradients of zero
                heed()
                part = x[start : start + ctx.size].detach().requires_grad_(ctx.needs_input_grad[3])
                with torch.enable_grad(), torch.autocast(x.device.type, **ctx.autocast):
                    outputs = ctx.piece(part)
                into = [gradients[k][start : start + ctx.size] for k in wanted]  # type: ignore[index]
                torch.autograd.backward([outputs[k] for k in wanted], into)
                del outputs
                if part.grad is not None:
                    collected.append(part.grad)
        whole = torch.cat(collected) if len(collected) > 1 else (collected or [None])[0]
        return None, None, None, whole, None


def _heeding(piece: Callable[[Tensor], T], part: Tensor) -> T:
    """A micro-batch, unless the run is to stop here."""
    heed()
    return piece(part)


def autocast_state(device: torch.device) -> dict[str, Any]:
    """What ``torch.autocast`` takes to continue as it is now."""
    return {"enabled": torch.is_autocast_enabled(device.type), "dtype": torch.get_autocast_dtype(device.type)}


@contextmanager
def statistics_untouched(module: nn.Module) -> Iterator[None]:
    """The forward pass has counted this batch already: running the same images again must not count them twice."""
    tracking = [m for m in module.modules() if isinstance(m, _BatchNorm) and m.training and m.track_running_stats]
    for norm in tracking:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in tracking:
            norm.track_running_stats = True
