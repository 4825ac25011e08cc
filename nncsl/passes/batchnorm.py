"""Micro-batches while BatchNorm trains: one layer after the other, so that its statistics are the whole batch's.

The rule: every BatchNorm normalizes with mean and variance of the whole batch and updates its running statistics once,
exactly as in one pass over the batch; the gradient through the statistics is kept too. So nothing is approximated.

How: BatchNorm is the only place where images meet. Between two of them the network is cut into segments; each segment
takes all micro-batches before the next one begins, and by then its BatchNorm's statistics are known. What lies on the
cuts is kept (on the device, in host memory or in a file), everything between them is computed again in the backward
pass, segment by segment from the end. With s = sum(dy), p = sum(dy * xhat) over the whole batch of n values a channel,
BatchNorm's gradient is  dz = w / std * (dy - s / n - xhat * p / n) : the first term is that of fixed statistics and
available per micro-batch; s and p are the gradients of bias and weight, complete once the segment is through.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nncsl.interruption import heed
from nncsl.networks import Block, Network, Outputs
from nncsl.passes import Passes, autocast_state, trains_batchnorm
from nncsl.passes.moments import BatchNorm, Moments, OneUnit, Statistics, Units, merge
from nncsl.passes.spill import Store, open_store


class Segment(NamedTuple):
    """What lies between cuts: ``run`` takes the values at the cuts it reads, normalized, and gives those it writes."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    run: Callable[..., tuple[Tensor, ...]]


def forward(network: Network, images: Sequence[Tensor], passes: Passes, units: Units | None = None) -> Outputs:
    """Return ``network`` of the images of this process's units, with BatchNorm that trains on those of all units.

    Activations are those of ``passes.micro_batch`` images at a time; 0: of a unit.
    """
    anchor = network.projector[0].weight  # autograd skips functions without an input that needs a gradient
    return Outputs(*_Staged.apply(network, images, passes, units or OneUnit(), anchor))


def cut(network: Network) -> tuple[list[Segment], dict[str, BatchNorm]]:
    """The network's segments in order, and which BatchNorm normalizes the values at which cut.

    A backbone without BatchNorm that trains (a vision transformer, one that is frozen) is part of the first segment.
    """
    segments: list[Segment] = []
    norms: dict[str, BatchNorm] = {}
    reads: tuple[str, ...] = ("images",)
    join: Callable[..., Tensor] = network.features
    if trains_batchnorm(network.blocks):
        convolution, stem_norm, *rest = network.stem
        segments.append(Segment(reads, ("stem",), lambda images: (convolution(network.prepare(images)),)))
        norms["stem"] = _norm(stem_norm)
        reads, join = ("stem",), nn.Sequential(*rest)
        for index, block in enumerate(network.blocks):
            (first, *later), shortcut = layers_of(block)
            name, skip = f"block {index} layer 1", f"block {index} skip"
            segments.append(Segment(reads, (name, skip), partial(_enter, join, first.convolution, shortcut)))
            norms[name] = first.norm
            for number, layer in enumerate(later, 2):
                before, name = name, f"block {index} layer {number}"
                segments.append(Segment((before,), (name,), partial(_activate, layer.convolution)))
                norms[name] = layer.norm
            if shortcut is not None:
                norms[skip] = shortcut.norm
            reads, join = (name, skip), _join
    hidden = list(network.projector)
    segments.append(Segment(reads, ("features", "hidden 1"), partial(_pool, network, join, hidden[0])))
    segments.append(Segment(("hidden 1",), ("hidden 2",), partial(_activate, hidden[3])))
    segments.append(Segment(("hidden 2",), ("projections",), partial(_activate, hidden[6])))
    return segments, norms | {"hidden 1": _norm(hidden[1]), "hidden 2": _norm(hidden[4])}


class Layer(NamedTuple):
    """A convolution and the BatchNorm behind it."""

    convolution: nn.Module
    norm: BatchNorm


def layers_of(block: Any) -> tuple[list[Layer], Layer | None]:
    """The layers of a residual block, ReLU between them, and its shortcut's, if that has one: ours or torchvision's."""
    numbers = [k for k in (1, 2, 3) if hasattr(block, f"conv{k}")]
    layers = [Layer(getattr(block, f"conv{k}"), _norm(getattr(block, f"bn{k}"))) for k in numbers]
    shortcut = block.shortcut if isinstance(block, Block) else block.downsample
    return layers, Layer(shortcut[0], _norm(shortcut[1])) if isinstance(shortcut, nn.Sequential) else None


def _norm(module: nn.Module) -> BatchNorm:
    assert isinstance(module, BatchNorm)
    return module


def _enter(
    join: Callable[..., Tensor], convolution: nn.Module, shortcut: Layer | None, *values: Tensor
) -> tuple[Tensor, ...]:
    x = join(*values)
    return convolution(x), x if shortcut is None else shortcut.convolution(x)


def _join(last: Tensor, skip: Tensor) -> Tensor:
    return F.relu(last + skip, inplace=True)


def _activate(layer: nn.Module, value: Tensor) -> tuple[Tensor, ...]:
    return (layer(F.relu(value, inplace=True)),)


def _pool(network: Network, join: Callable[..., Tensor], layer: nn.Module, *values: Tensor) -> tuple[Tensor, ...]:
    features = network.pool(join(*values))
    return features, layer(features)


class _Staged(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, network: Network, images: Sequence[Tensor], passes: Passes, units: Units, anchor: Tensor
    ) -> tuple[Tensor, ...]:
        segments, norms = cut(network)
        parts = [
            (u, part) for u, whole in enumerate(images) for part in whole.split(passes.micro_batch or len(whole) or 1)
        ]
        store = open_store(passes.spill, anchor.device, passes.folder)
        statistics: dict[str, Statistics] = {}
        for segment in segments:
            moments = {name: [Moments() for _ in images] for name in segment.writes if name in norms}
            for k, (unit, part) in enumerate(parts):
                heed()
                values = [part if name == "images" else store.get((name, k)) for name in segment.reads]
                normalized = [
                    _normalize(value, norms.get(name), statistics.get(name))
                    for name, value in zip(segment.reads, values, strict=True)
                ]
                for name, value in zip(segment.writes, segment.run(*normalized), strict=True):
                    store.put((name, k), value)
                    if name in moments:
                        moments[name][unit].add(value)
            for name, found in moments.items():
                statistics[name] = merge(found, units).finish(norms[name])
        ctx.segments, ctx.norms, ctx.statistics, ctx.store = segments, norms, statistics, store
        ctx.units, ctx.count, ctx.autocast = units, len(images), autocast_state(anchor.device)
        ctx.of = [unit for unit, _ in parts]
        ctx.save_for_backward(*(part for _, part in parts))
        ctx.set_materialize_grads(False)
        return tuple(
            torch.cat([store.take((name, k)) for k in range(len(parts))]) for name in ("features", "projections")
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[None, ...]:
        parts = ctx.saved_tensors
        arriving = _Arriving(ctx.store, ctx.norms, ctx.statistics, ctx.units)
        for name, gradient in zip(("features", "projections"), gradients, strict=True):
            if gradient is not None:
                arriving.receive_output(name, gradient.split([len(part) for part in parts]))
        for segment in reversed(ctx.segments):
            used = [index for index, name in enumerate(segment.writes) if name in arriving]
            normed = [name for name in segment.reads if name in ctx.norms]
            affine = [{name: _affine(ctx.norms[name]) for name in normed} for _ in range(ctx.count)]
            for k, (unit, part) in enumerate(zip(ctx.of, parts, strict=True)):
                heed()
                values = [
                    part if name == "images" else ctx.store.take((name, k)).requires_grad_(bool(used))
                    for name in segment.reads
                ]
                if not used:
                    continue
                with torch.enable_grad(), torch.autocast(part.device.type, **ctx.autocast):
                    normalized = [
                        _normalize(value, ctx.norms.get(name), ctx.statistics.get(name), affine[unit].get(name))
                        for name, value in zip(segment.reads, values, strict=True)
                    ]
                    outputs = segment.run(*normalized)
                trained = [index for index in used if outputs[index].requires_grad]  # not a frozen backbone's features
                wanted = [outputs[index] for index in trained]
                into = [arriving.take(segment.writes[index], k, outputs[index].detach()) for index in trained]
                with ctx.units.into(unit):
                    torch.autograd.backward(wanted, into)
                for name, value in zip(segment.reads, values, strict=True):
                    if value.grad is not None:
                        arriving.receive(name, k, value.grad)
                del values, normalized, outputs, wanted, into
            for name in normed:
                if used:
                    arriving.finish(name, [each[name] for each in affine])
        return None, None, None, None, None


class _Arriving:
    """Gradients on their way back, by cut and micro-batch, and what the whole batch adds to them at a BatchNorm."""

    def __init__(
        self, store: Store, norms: dict[str, BatchNorm], statistics: dict[str, Statistics], units: Units
    ) -> None:
        self._store, self._norms, self._statistics, self._units = store, norms, statistics, units
        self._names: set[str] = set()
        self._outputs: dict[str, tuple[Tensor, ...]] = {}
        self._sums: dict[str, tuple[Tensor, Tensor]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def receive_output(self, name: str, parts: tuple[Tensor, ...]) -> None:
        self._names.add(name)
        self._outputs[name] = parts

    def receive(self, name: str, k: int, gradient: Tensor) -> None:
        self._names.add(name)
        self._store.put((f"gradient of {name}", k), gradient)

    def finish(self, name: str, affine: list[tuple[Tensor, Tensor]]) -> None:
        """All micro-batches are through: the sums over the batch are the gradients of weight and bias, unit by unit."""
        norm = self._norms[name]
        sums = []
        for unit, (weight, bias) in enumerate(affine):
            assert weight.grad is not None and bias.grad is not None
            sums.append(torch.cat([bias.grad, weight.grad]))
            with self._units.into(unit):
                for parameter, gradient in ((norm.weight, weight.grad), (norm.bias, bias.grad)):
                    parameter.grad = gradient.clone() if parameter.grad is None else parameter.grad + gradient
        sum_dy, sum_dy_xhat = self._units.total(sums).chunk(2)
        self._sums[name] = sum_dy, sum_dy_xhat

    def take(self, name: str, k: int, value: Tensor) -> Tensor:
        """The gradient with respect to ``value``, the k-th micro-batch's values at a cut."""
        if name in self._outputs:
            return self._outputs[name][k]
        direct = self._store.take((f"gradient of {name}", k))
        if name not in self._sums:
            return direct
        mean, variance, values = self._statistics[name]
        sum_dy, sum_dy_xhat = self._sums[name]
        norm = self._norms[name]
        scale = torch.rsqrt(variance + norm.eps)
        factor = norm.weight.detach() * scale / values
        shape = [1, -1] + [1] * (value.ndim - 2)
        # factor * (sum_dy + xhat * sum_dy_xhat), gathered into one multiplication and one addition per value
        slope = factor * scale * sum_dy_xhat
        offset = factor * sum_dy - slope * mean
        return direct.sub_((value * slope.view(shape)).add_(offset.view(shape)).to(direct.dtype))


def _affine(norm: BatchNorm) -> tuple[Tensor, Tensor]:
    """Weight and bias to differentiate by, apart from the parameters: their gradients are this pass's alone."""
    return norm.weight.detach().requires_grad_(), norm.bias.detach().requires_grad_()


def _normalize(
    value: Tensor, norm: BatchNorm | None, statistics: Statistics | None, affine: tuple[Tensor, Tensor] | None = None
) -> Tensor:
    """BatchNorm with the whole batch's statistics; values of a cut without BatchNorm stay."""
    if norm is None or statistics is None:
        return value
    weight, bias = affine or (norm.weight.detach(), norm.bias.detach())
    if not len(value):  # torch gives the weight a gradient of no images that is not zero
        shape = [1, -1] + [1] * (value.ndim - 2)
        return value * weight.view(shape) + bias.view(shape)
    return F.batch_norm(value, statistics.mean, statistics.variance, weight, bias, training=False, eps=norm.eps)
