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

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nncsl.networks import Block, Network, Outputs
from nncsl.passes import Passes, autocast_state
from nncsl.passes.spill import Store, open_store

BatchNorm = nn.modules.batchnorm._BatchNorm


class Segment(NamedTuple):
    """What lies between cuts: ``run`` takes the values at the cuts it reads, normalized, and gives those it writes."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    run: Callable[..., tuple[Tensor, ...]]


class Statistics(NamedTuple):
    """Of the whole batch, per channel: mean, variance, and the number of values."""

    mean: Tensor
    variance: Tensor
    values: int


def forward(network: Network, images: Tensor, passes: Passes) -> Outputs:
    """``network(images)`` with activations of ``passes.micro_batch`` images at a time; BatchNorm has to be training."""
    anchor = next(network.parameters())  # autograd skips functions without an input that needs a gradient
    return Outputs(*_Staged.apply(network, images, passes, anchor))


def cut(network: Network) -> tuple[list[Segment], dict[str, BatchNorm]]:
    """The network's segments in order, and which BatchNorm normalizes the values at which cut."""
    convolution, stem_norm, *rest = network.stem
    segments = [Segment(("images",), ("stem",), lambda images: (convolution(network.prepare(images)),))]
    norms = {"stem": _norm(stem_norm)}
    reads: tuple[str, ...] = ("stem",)
    join: Callable[..., Tensor] = nn.Sequential(*rest)
    for index, block in enumerate(network.blocks):
        assert isinstance(block, Block)
        first, second, skip = (f"block {index} {name}" for name in ("first", "second", "skip"))
        segments.append(Segment(reads, (first, skip), partial(_enter, join, block)))
        segments.append(Segment((first,), (second,), partial(_activate, block.conv2)))
        norms |= {first: block.bn1, second: block.bn2}
        if isinstance(block.shortcut, nn.Sequential):
            norms[skip] = _norm(block.shortcut[1])
        reads, join = (second, skip), _join
    layers = list(network.projector)
    segments.append(Segment(reads, ("features", "hidden 1"), partial(_pool, join, layers[0])))
    segments.append(Segment(("hidden 1",), ("hidden 2",), partial(_activate, layers[3])))
    segments.append(Segment(("hidden 2",), ("projections",), partial(_activate, layers[6])))
    norms |= {"hidden 1": _norm(layers[1]), "hidden 2": _norm(layers[4])}
    return segments, norms


def _norm(module: nn.Module) -> BatchNorm:
    assert isinstance(module, BatchNorm)
    return module


def _enter(join: Callable[..., Tensor], block: Block, *values: Tensor) -> tuple[Tensor, ...]:
    x = join(*values)
    return block.conv1(x), block.shortcut[0](x) if isinstance(block.shortcut, nn.Sequential) else x


def _join(second: Tensor, skip: Tensor) -> Tensor:
    return F.relu(second + skip, inplace=True)


def _activate(layer: nn.Module, value: Tensor) -> tuple[Tensor, ...]:
    return (layer(F.relu(value, inplace=True)),)


def _pool(join: Callable[..., Tensor], layer: nn.Module, *values: Tensor) -> tuple[Tensor, ...]:
    features = join(*values).mean(dim=(2, 3))
    return features, layer(features)


class _Staged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, network: Network, images: Tensor, passes: Passes, anchor: Tensor) -> tuple[Tensor, ...]:
        segments, norms = cut(network)
        parts = list(images.split(passes.micro_batch))
        store = open_store(passes.spill, images.device, passes.folder)
        statistics: dict[str, Statistics] = {}
        for segment in segments:
            moments = {name: _Moments() for name in segment.writes if name in norms}
            for k, part in enumerate(parts):
                values = [part if name == "images" else store.get((name, k)) for name in segment.reads]
                normalized = [
                    _normalize(value, norms.get(name), statistics.get(name))
                    for name, value in zip(segment.reads, values, strict=True)
                ]
                for name, value in zip(segment.writes, segment.run(*normalized), strict=True):
                    store.put((name, k), value)
                    if name in moments:
                        moments[name].add(value)
            for name, found in moments.items():
                statistics[name] = found.finish(norms[name])
        ctx.segments, ctx.norms, ctx.statistics, ctx.store = segments, norms, statistics, store
        ctx.size, ctx.autocast = passes.micro_batch, autocast_state(images.device)
        ctx.save_for_backward(images)
        ctx.set_materialize_grads(False)
        return tuple(
            torch.cat([store.take((name, k)) for k in range(len(parts))]) for name in ("features", "projections")
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[None, ...]:
        (images,) = ctx.saved_tensors
        parts = images.split(ctx.size)
        arriving = _Arriving(ctx.store, ctx.norms, ctx.statistics)
        for name, gradient in zip(("features", "projections"), gradients, strict=True):
            if gradient is not None:
                arriving.receive_output(name, gradient.split(ctx.size))
        for segment in reversed(ctx.segments):
            used = [index for index, name in enumerate(segment.writes) if name in arriving]
            affine = {name: _affine(ctx.norms[name]) for name in segment.reads if name in ctx.norms}
            for k, part in enumerate(parts):
                values = [
                    part if name == "images" else ctx.store.take((name, k)).requires_grad_(bool(used))
                    for name in segment.reads
                ]
                if not used:
                    continue
                with torch.enable_grad(), torch.autocast(images.device.type, **ctx.autocast):
                    normalized = [
                        _normalize(value, ctx.norms.get(name), ctx.statistics.get(name), affine.get(name))
                        for name, value in zip(segment.reads, values, strict=True)
                    ]
                    outputs = segment.run(*normalized)
                wanted = [outputs[index] for index in used]
                into = [arriving.take(segment.writes[index], k, outputs[index].detach()) for index in used]
                torch.autograd.backward(wanted, into)
                for name, value in zip(segment.reads, values, strict=True):
                    if value.grad is not None:
                        arriving.receive(name, k, value.grad)
                del values, normalized, outputs, wanted, into
            for name, (weight, bias) in affine.items():
                if used:
                    arriving.finish(name, weight, bias)
        return None, None, None, None


class _Arriving:
    """Gradients on their way back, by cut and micro-batch, and what the whole batch adds to them at a BatchNorm."""

    def __init__(self, store: Store, norms: dict[str, BatchNorm], statistics: dict[str, Statistics]) -> None:
        self._store, self._norms, self._statistics = store, norms, statistics
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

    def finish(self, name: str, weight: Tensor, bias: Tensor) -> None:
        """All micro-batches are through: the sums over the batch are the gradients of weight and bias."""
        assert weight.grad is not None and bias.grad is not None
        self._sums[name] = bias.grad, weight.grad
        norm = self._norms[name]
        for parameter, gradient in ((norm.weight, weight.grad), (norm.bias, bias.grad)):
            parameter.grad = gradient.clone() if parameter.grad is None else parameter.grad + gradient

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


class _Moments:
    """Mean and variance of a batch that comes in parts, merged without cancellation."""

    def __init__(self) -> None:
        self._count = 0
        self._mean: Tensor | float = 0.0
        self._squares: Tensor | float = 0.0

    def add(self, part: Tensor) -> None:
        count = part.numel() // part.shape[1]
        at_least_single = torch.promote_types(part.dtype, torch.float32)
        dims = [d for d in range(part.ndim) if d != 1]
        variance, mean = torch.var_mean(part.to(at_least_single), dim=dims, correction=0)
        variance, mean = variance.double(), mean.double()
        total = self._count + count
        apart = mean - self._mean
        self._squares = self._squares + variance * count + apart**2 * (self._count * count / total)
        self._mean = self._mean + apart * (count / total)
        self._count = total

    def finish(self, norm: BatchNorm) -> Statistics:
        """The statistics, counted into the BatchNorm's running ones."""
        assert isinstance(self._mean, Tensor) and isinstance(self._squares, Tensor)
        assert norm.running_mean is not None and norm.running_var is not None
        if self._count < 2:
            raise ValueError("BatchNorm cannot train on a single value per channel: use batches of 2 or more images")
        kind, rate = norm.running_mean.dtype, norm.momentum or 0.0
        if norm.track_running_stats:
            norm.running_mean.lerp_(self._mean.to(kind), rate)
            norm.running_var.lerp_((self._squares / (self._count - 1)).to(kind), rate)
            assert norm.num_batches_tracked is not None
            norm.num_batches_tracked += 1
        return Statistics(self._mean.to(kind), (self._squares / self._count).to(kind), self._count)


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
    return F.batch_norm(value, statistics.mean, statistics.variance, weight, bias, training=False, eps=norm.eps)
