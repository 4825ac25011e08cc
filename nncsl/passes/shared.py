"""A pass that ranks share: every rank runs the rows of its own units, all get all outputs.

All ranks compute the same loss from the same outputs, so a rank's backward pass takes its own rows' gradient and leaves
the rest (adding up over ranks would count the loss once per rank). What that gives for the network's parameters is kept
apart from what reaches them by other ways, a penalty on weights, say: those are complete on every rank already.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from nncsl import passes
from nncsl.batches import Batch, Render
from nncsl.networks import Network, Outputs
from nncsl.passes import Passes, batchnorm, merged

if TYPE_CHECKING:
    from nncsl.distributed import Ranks

_BUCKET = 2**23  # bytes of gradients that are sent together


class Share(NamedTuple):
    """Pixels of this rank's units, in order, of groups of ``sizes`` rows that share a pass."""

    parts: list[Tensor]
    sizes: tuple[int, ...]


class Views(Mapping[str, Tensor]):
    """The pixels of a batch, by group: whole groups for a method that mixes images, otherwise a rank's share of them.

    Nothing is rendered before it is asked for.
    """

    def __init__(self, batch: Batch, render: Render, ranks: "Ranks") -> None:
        self._batch, self._render, self._ranks = batch, render, ranks
        self._whole: dict[str, Tensor] = {}
        self._own: dict[str, list[Tensor]] = {}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._whole:
            self._whole[name] = self._render(self._batch[name].keys)
        return self._whole[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._batch)

    def __len__(self) -> int:
        return len(self._batch)

    def own(self, name: str) -> list[Tensor]:
        """Return the pixels of this rank's units of a group, in order."""
        if name not in self._own:
            rows = [unit_rows((len(self._batch[name]),), self._ranks.units)[unit] for unit in self._ranks.own]
            if name in self._whole:
                self._own[name] = [self._whole[name][torch.from_numpy(each)] for each in rows]
            else:
                pixels = self._render(self._batch[name].keys.rows(np.concatenate(rows)))
                self._own[name] = list(pixels.split([len(each) for each in rows]))
        return self._own[name]

    def share(self, names: Sequence[str]) -> Share:
        """Return what this rank runs of a pass over groups."""
        parts = [own[0] if len(own) == 1 else torch.cat(own) for own in zip(*map(self.own, names), strict=True)]
        return Share(parts, tuple(len(self._batch[name]) for name in names))

    def answers(self, name: str, rows: np.ndarray, answer: Callable[[Tensor], Tensor]) -> Tensor:
        """Return ``answer`` on the chosen rows (bool [n]) of a group, from all ranks."""
        chosen = [rows[each] for each in unit_rows((len(rows),), self._ranks.units)]
        own = [
            pixels[torch.from_numpy(chosen[unit])] for unit, pixels in zip(self._ranks.own, self.own(name), strict=True)
        ]
        return torch.cat(
            self._ranks.gather(torch.cat([answer(pixels) for pixels in own]), [int(c.sum()) for c in chosen])
        )


@lru_cache(maxsize=64)
def unit_rows(sizes: tuple[int, ...], units: int) -> list[np.ndarray]:
    """Return the rows of every unit, of groups that stand one after the other: nearly equal parts of each group."""
    starts = np.cumsum((0, *sizes[:-1]))
    return [
        np.concatenate(
            [np.arange(s + u * n // units, s + (u + 1) * n // units) for s, n in zip(starts, sizes, strict=True)]
        )
        for u in range(units)
    ]


def gather_rows(rows: Tensor, sizes: tuple[int, ...], ranks: "Ranks") -> Tensor:
    """Return all rows of groups, in order, from this rank's units' rows one after the other."""
    places = unit_rows(sizes, ranks.units)
    found = ranks.gather(rows, [len(each) for each in places])
    return torch.cat(found)[torch.from_numpy(np.argsort(np.concatenate(places))).to(rows.device)]


class SharedForward:
    """The network's pass over whole groups (images [n, C, H, W], or a share of them) to the outputs of all rows."""

    def __init__(self, network: Network, how: Passes, gradients: "Gradients") -> None:
        self.network, self.how, self.gradients, self.ranks = network, how, gradients, gradients.ranks
        self.whole = passes.forward(network, how)

    def __call__(self, pixels: Tensor | Share) -> Outputs:
        differentiable = torch.is_grad_enabled()
        if isinstance(pixels, Tensor):
            if pixels.requires_grad and differentiable:
                return self.whole(pixels)  # what their gradient goes on to needs all of it, on every rank
            rows = unit_rows((len(pixels),), self.ranks.units)
            pixels = Share([pixels[torch.from_numpy(rows[unit])] for unit in self.ranks.own], (len(pixels),))
        anchor = next((p for p in self.network.parameters() if p.requires_grad), None)
        if anchor is None or not differentiable:
            return gathered([outputs for _, outputs in self.run(pixels)], pixels.sizes, self.ranks)
        return Outputs(*_Shared.apply(self, pixels, anchor))

    def run(self, share: Share) -> list[tuple[int | None, Outputs]]:
        """Return the outputs of this rank's units, by place; None: of all, from a pass that sorts its gradients."""
        if not passes.trains_batchnorm(self.network):
            return [(place, self._frozen(part)) for place, part in enumerate(share.parts)]
        if self.how.micro_batch or len(self.ranks.own) > 1 or self.ranks.exact:
            return [(None, batchnorm.forward(self.network, share.parts, self.how, self.gradients))]
        with self.merging():
            return [(0, self.whole(share.parts[0]))]

    def _frozen(self, part: Tensor) -> Outputs:
        """A pass in which images don't meet. A unit without any runs an empty image, and takes no notice of it.

        So its parameters' gradients are zeros of the right shapes: torch's BatchNorm gives others for no images.
        """
        if len(part):
            return self.whole(part)
        return Outputs(*(each[:0] for each in self.whole(part.new_zeros(1, *part.shape[1:]))))

    def merging(self) -> AbstractContextManager:
        """Return the block in which BatchNorm that trains takes the statistics of all ranks."""
        return merged.statistics(self.network, self.gradients) if not self.how.micro_batch else nullcontext()


def gathered(own: Sequence[Outputs], sizes: tuple[int, ...], ranks: "Ranks") -> Outputs:
    """Return the outputs of all rows from those of this rank's units."""
    features, projections = (torch.cat(each) for each in zip(*own, strict=True))
    if features.dtype != projections.dtype:
        return Outputs(gather_rows(features, sizes, ranks), gather_rows(projections, sizes, ranks))
    rows = gather_rows(torch.cat([features, projections], dim=1), sizes, ranks)
    return Outputs(rows[:, : features.shape[1]], rows[:, features.shape[1] :])


class _Shared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, shared: SharedForward, share: Share, anchor: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            ctx.own = shared.run(share)
        ctx.shared, ctx.sizes = shared, share.sizes
        ctx.set_materialize_grads(False)  # what a loss does not use gets no gradient, not zeros
        shared.gradients.begin_pass()
        detached = [Outputs(*(each.detach() for each in outputs)) for _, outputs in ctx.own]
        return tuple(each.contiguous() for each in gathered(detached, share.sizes, shared.ranks))

    @staticmethod
    def backward(ctx: Any, *whole: Tensor | None) -> tuple[None, ...]:
        shared, own, ctx.own = ctx.shared, ctx.own, None
        ranks, gradients = shared.ranks, shared.gradients
        rows = [unit_rows(ctx.sizes, ranks.units)[unit] for unit in ranks.own]
        gradients.end_pass()
        for place, outputs in own:
            chosen = np.concatenate(rows) if place is None else rows[place]
            wanted = [k for k, gradient in enumerate(whole) if gradient is not None and outputs[k].requires_grad]
            into = [whole[k][torch.from_numpy(chosen).to(whole[k].device)] for k in wanted]  # type: ignore[index, union-attr]
            if not wanted:
                continue
            with shared.merging(), gradients.into(place) if place is not None else nullcontext():
                torch.autograd.backward([outputs[k] for k in wanted], into)
        return None, None, None


class Gradients:
    """What shared passes give for a network's parameters, by unit, until all ranks' are added up.

    at_once: passes run in one piece, so that those of a step's last one can be sent while it goes on.
    """

    def __init__(self, network: nn.Module, ranks: "Ranks", *, at_once: bool) -> None:
        self.ranks, self._at_once = ranks, at_once and not ranks.exact
        self._parameters = list(network.parameters())
        self._sums: list[dict[nn.Parameter, Tensor]] = [{} for _ in ranks.own]
        self._open, self._sending = 0, False
        self._ready: list[tuple[nn.Parameter, Tensor]] = []
        self._sent: list[tuple[list[nn.Parameter], Callable[[], Tensor]]] = []
        self._hooks = [p.register_post_accumulate_grad_hook(self._arrived) for p in self._parameters if p.requires_grad]

    def begin_pass(self) -> None:
        """Count a pass that will have a backward pass."""
        self._open += 1

    def end_pass(self) -> None:
        """Hear that its backward pass begins."""
        self._open -= 1

    @contextmanager
    def into(self, unit: int) -> Iterator[None]:
        """Keep what parameters get inside the block as a unit's, by its place; their own gradients stay as they are."""
        sums = self._sums[unit]
        aside = [p.grad for p in self._parameters]
        for p in self._parameters:
            p.grad = None
        self._sending = self._at_once and not self._open
        try:
            yield
        finally:
            self._sending = False
            for p, kept in zip(self._parameters, aside, strict=True):
                if p.grad is not None:
                    sums[p] = sums[p] + p.grad if p in sums else p.grad
                p.grad = kept

    def merged(self, moments: list[Tensor]) -> list[Tensor]:
        """Return all units' values, in order, from this rank's units' values [n] each: for BatchNorm's statistics."""
        return [each[0] for each in self.ranks.gather(torch.stack(moments), [1] * self.ranks.units)]

    def total(self, values: list[Tensor]) -> Tensor:
        """Return the sum of all units' values, from this rank's units' [n] each: for BatchNorm's gradient."""
        if self.ranks.exact:
            return self.ranks.add_units(values)
        return self.ranks.add(values[0].clone())()

    def finish(self) -> None:
        """Add up over ranks and put the sums into the parameters' gradients."""
        left = [p for p in self._parameters if p in self._sums[0]]
        if self.ranks.exact and left:
            flat = [torch.cat([sums[p].flatten() for p in left]) for sums in self._sums]
            _put(left, self.ranks.add_units(flat))
        elif left:
            self._ready += [(p, self._sums[0][p]) for p in left]
        self._send()
        for parameters, total in self._sent:
            _put(parameters, total())
        self._sent, self._open = [], 0
        for sums in self._sums:
            sums.clear()

    def close(self) -> None:
        """Stop listening to the parameters."""
        for hook in self._hooks:
            hook.remove()

    def _arrived(self, parameter: Tensor) -> None:
        """A gradient of the step's last pass: send it on as soon as enough of them are there."""
        if not self._sending or parameter.grad is None:
            return
        assert isinstance(parameter, nn.Parameter)
        (sums,) = self._sums
        gradient, parameter.grad = parameter.grad, None
        self._ready.append((parameter, gradient + sums.pop(parameter) if parameter in sums else gradient))
        if sum(gradient.nbytes for _, gradient in self._ready) >= _BUCKET:
            self._send()

    def _send(self) -> None:
        if self._ready:
            flat = torch.cat([gradient.flatten() for _, gradient in self._ready])
            self._sent.append(([p for p, _ in self._ready], self.ranks.add(flat)))
            self._ready = []


def _put(parameters: list[nn.Parameter], flat: Tensor) -> None:
    """Add values that stand one after the other to the parameters' gradients."""
    for p, values in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        gradient = values.view(p.shape)
        p.grad = torch.empty_like(p).copy_(gradient) if p.grad is None else p.grad.add_(gradient)
