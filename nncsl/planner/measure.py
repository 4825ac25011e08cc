"""What a training step costs on this machine: bytes and seconds, measured with a few images and extended to all.

Memory and time of a pass grow linearly with its images, so two small measurements tell those of a step that would not
fit. The network, the sizes of the images and the device are the run's own; the pixels are random.
"""

import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nncsl import accounting, networks, passes
from nncsl.config import Config
from nncsl.networks import Network
from nncsl.passes import Passes

_BESIDES = 1.25  # of what is held at once: gradients of maps, and the heap's holes (measured: 1.1 to 1.3)


@dataclass(frozen=True)
class Load:
    """The images of a step: ``large`` views (supports among them) and ``small`` ones; frozen: BatchNorm's mode."""

    large: int
    small: int
    frozen: bool

    def share(self, ranks: int) -> "Load":
        """Return the most that one of several ranks has of it."""
        return Load(-(-self.large // ranks), -(-self.small // ranks), self.frozen)


@dataclass(frozen=True)
class Cost:
    """Bytes above what was in use before, gradients included, and seconds; held: what autograd kept of those bytes.

    What is held can be counted, so it grows exactly as it should. The rise holds everything, but what a process has in
    use is a rough measure: of small steps, too rough to be extended without the other.
    """

    rise: float
    seconds: float
    held: float = 0.0

    def growth(self, smaller: "Cost", images: int) -> float:
        """Bytes per image from a smaller cost to this one: those measured, at least those counted and a quarter."""
        return max(self.rise - smaller.rise, _BESIDES * (self.held - smaller.held), 0.0) / images


class Meter:
    """Measures passes through one network; every question is measured once."""

    def __init__(self, network: Network, config: Config, device: torch.device) -> None:
        self._network, self._config, self._device = network, config, device
        self._known: dict[tuple[Passes, int, int, bool], Cost] = {}
        self._confirmed: dict[tuple[Passes, bool], float] = {}
        # Larger images take longer and show their slope with fewer of them.
        self._few, self._more = (4, 16) if config.views.large.size <= 64 else (2, 6)

    def step(self, load: Load, how: Passes) -> Cost:
        """Forward and backward pass of a whole step."""
        if how.micro_batch:
            return self._in_micro_batches(load, how)
        low, high = (self._share(load, images, how) for images in (self._few, self._more))
        per_image = high.growth(low, self._more - self._few)
        rise = low.rise + per_image * (load.large - self._few)
        return Cost(rise, high.seconds * load.large / self._more)

    def confirm(self, load: Load, how: Passes) -> bool:
        """Measures two micro-batches of the wanted size instead of trusting a line through smaller ones.

        Returns whether that was news; later answers take it into account.
        """
        key = (how, load.frozen)
        if not how.micro_batch or key in self._confirmed:
            return False
        images = min(2 * how.micro_batch, load.large)
        kept = 0.0
        if how.spill == "device" and not load.frozen:
            few = self._few // 2
            low, twice = (self._share(load, size, replace(how, micro_batch=few)) for size in (2 * few, 4 * few))
            kept = twice.growth(low, 2 * few)
        self._confirmed[key] = self._share(load, images, how).rise + kept * (load.large - images)
        return True

    def rehearse(self, how: Passes, *, frozen: bool) -> None:
        """A small pass, for what it leaves behind in the libraries."""
        images = 2 * how.micro_batch or self._more
        self._measure(how, images, images, frozen=frozen)

    def inference(self) -> float:
        """Bytes that a pass without gradient takes: sweeps and, always in fp32, evaluation."""
        size = self._config.views.large.size
        images = self._images(passes.inference_batch(self._network, size), size)
        with networks.evaluating(self._network):
            for _ in range(2):  # the second counts, as in _share
                accounting.forget_peak(self._device)
                before = accounting.in_use(self._device)
                self._network(images)
                rise = accounting.process_peak(self._device) - before
        return _BESIDES * (rise + images.nbytes)

    def _in_micro_batches(self, load: Load, how: Passes) -> Cost:
        """Linear in the micro-batch, and in the whole batch where that is kept in memory."""
        few, more = self._few // 2, self._more // 2
        low, high = (self._share(load, 2 * size, replace(how, micro_batch=size)) for size in (few, more))
        size = min(how.micro_batch, load.large)
        kept = 0.0
        if how.spill == "device" and not load.frozen:
            twice = self._share(load, 4 * few, replace(how, micro_batch=few))
            kept = twice.growth(low, 2 * few)
        # Both measurements hold two micro-batches' worth of what is kept; the rest belongs to one micro-batch.
        slope = high.growth(low, more - few) - 2 * kept
        rise = low.rise - 2 * few * kept + max(0.0, slope) * (size - few) + kept * load.large
        rise = max(rise, self._confirmed.get((how, load.frozen), 0.0))
        # Per image, a share of the time is lost on every micro-batch: seconds = a + b / size.
        per_image = low.seconds / (2 * few), high.seconds / (2 * more)
        lost = max(0.0, (per_image[0] - per_image[1]) / (1 / few - 1 / more))
        return Cost(rise, load.large * (per_image[1] + lost * (1 / size - 1 / more)))

    def _share(self, load: Load, large: int, how: Passes) -> Cost:
        """A step with ``large`` images of the large size and the small ones in proportion."""
        # At least two: one alone has no variance for BatchNorm to train with.
        small = min(load.small, max(2, round(load.small * large / load.large)))
        key = (how, large, small, load.frozen)
        if key not in self._known:
            # Twice: on the first pass with new shapes the libraries behind convolutions allocate for good.
            first, second = (self._measure(how, large, small, frozen=load.frozen) for _ in range(2))
            self._known[key] = replace(second, seconds=min(first.seconds, second.seconds))
        return self._known[key]

    def _measure(self, how: Passes, large: int, small: int, *, frozen: bool) -> Cost:
        networks.set_training(self._network, freeze_batchnorm=frozen)
        forward = passes.forward(self._network, how)
        sizes = ((large, self._config.views.large.size), (small, self._config.views.small.size))
        images = [self._images(count, size) for count, size in sizes if count]
        self._network.zero_grad(set_to_none=True)
        state = {name: value.clone() for name, value in self._network.named_buffers()}
        accounting.forget_peak(self._device)
        before = accounting.in_use(self._device)
        began = self._clock()
        with accounting.saved_activations(self._network) as tally:
            with networks.autocast(self._config.precision, self._device):
                outputs = [forward(torch.cat([part])) for part in images]  # a step puts queries and supports together
            losses = [o.projections.float().square().mean() + o.features.float().mean() for o in outputs]
            torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]
        seconds = self._clock() - began
        rise = accounting.process_peak(self._device) - before
        self._network.zero_grad(set_to_none=True)
        for name, value in self._network.named_buffers():
            value.copy_(state[name])
        return Cost(rise, seconds, tally.peak)

    def _clock(self) -> float:
        """Seconds; on a CPU those of this process, which others that run beside it don't lengthen."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            return time.perf_counter()
        return time.process_time() / torch.get_num_threads()

    def _images(self, count: int, size: int) -> Tensor:
        channels = len(self._config.views.mean)
        return torch.randn(count, channels, size, size, generator=torch.Generator().manual_seed(0)).to(self._device)
