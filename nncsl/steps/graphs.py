"""A training step as one CUDA graph per phase: forward pass, losses and backward pass, replayed on fresh inputs.

A step at the sizes of small images is hundreds of kernels of a few microseconds; to start them one by one takes the
host longer than they run. Rendering and the optimizer stay outside: sizes of the former change from step to step.
No machine with a GPU has run this yet. What could be tried without one is in tests/nncsl/test_graphs.py.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nncsl import networks
from nncsl.config import Config
from nncsl.methods.base import Losses, Method, Step

WARM_UP = 3  # steps without a graph: libraries allocate, constants travel
Compute = Callable[[Step], Losses]


def computation(method: Method, scaler: torch.amp.GradScaler, device: torch.device) -> Compute:
    """Return the function from a step to its losses, which leaves its gradients in the method's parameters."""

    def compute(step: Step) -> Losses:
        method.zero_grad(set_to_none=True)
        with networks.autocast(method.config.precision, device):
            losses = method.losses(step)
        losses.backward(scaler)
        return losses

    return compute


def refusal(config: Config, device: torch.device, method: Method) -> str | None:
    """Return why a phase's steps are not captured; None if they are."""
    if config.cuda_graph == "off":
        return "switched off"
    if device.type != "cuda":
        return f"the device is {device.type}"
    if config.precision == "fp16":
        return "precision=fp16 has a scaler that looks at every step's gradients"
    if config.memory_budget:
        return "memory_budget: a graph keeps memory for itself, which nobody has planned"
    if config.micro_batch and config.spill != "device":
        return f"micro-batches are spilled (spill={config.spill})"
    if any(module._forward_hooks or module._forward_pre_hooks for module in method.modules()):
        return "modules have hooks, which would run once and never again"
    if not says_of_its_losses(method):
        return f"{type(method).__name__} does not say that its steps are all alike"
    return method.uncaptured() or None


def says_of_its_losses(method: Method) -> bool:
    """Tell whether `uncaptured` was written for these `losses`: a class that changes them has to say it anew."""
    order = type(method).__mro__
    losses, said = (next(k for k, c in enumerate(order) if name in vars(c)) for name in ("losses", "uncaptured"))
    return said <= losses


class Inputs(NamedTuple):
    """What differs from step to step of a phase: tensors by name."""

    pixels: dict[str, Tensor]
    targets: dict[str, Tensor]
    known: dict[str, Tensor]
    notes: dict[str, Tensor]

    @classmethod
    def of(cls, step: Step) -> "Inputs":
        return cls(*(dict(getattr(step, name)) for name in cls._fields))

    def tensors(self) -> list[Tensor]:
        return [tensor for part in self for tensor in part.values()]

    def signature(self) -> tuple[Any, ...]:
        """Return names, types and shapes: a graph is of one of these."""
        return tuple((*part, *((t.dtype, *t.shape) for t in part.values())) for part in self)


class Buffers:
    """Inputs that stay where they are while their contents change."""

    def __init__(self, step: Step) -> None:
        inputs = Inputs.of(step)
        self._inputs = Inputs(*({name: t.clone() for name, t in part.items()} for part in inputs))
        self.signature = inputs.signature()
        self.step = step._replace(**self._inputs._asdict())

    def fill(self, step: Step) -> None:
        """Take over the contents of a step of the same signature."""
        torch._foreach_copy_(self._inputs.tensors(), Inputs.of(step).tensors())


class Graph:
    """Steps of one phase: after ``WARM_UP`` of them one is captured, and those of its shapes are replays of it."""

    def __init__(self, compute: Compute, method: Method) -> None:
        self._compute, self._method = compute, method
        self._calls = 0
        self._buffers: Buffers | None = None

    def __call__(self, step: Step) -> Losses:
        self._calls += 1
        if self._calls <= WARM_UP:
            return self._beside(step)
        if self._buffers is None:
            self._capture(step)
        assert self._buffers is not None
        if Inputs.of(step).signature() != self._buffers.signature:
            return self._compute(step)
        self._buffers.fill(step)
        self._graph.replay()
        for parameter, gradient in self._gradients:  # which somebody may have let go of
            parameter.grad = gradient
        return self._losses

    def _beside(self, step: Step) -> Losses:
        """Compute on another stream, as capturing will: what autograd keeps of a stream is then not the default's."""
        main, stream = torch.cuda.current_stream(), torch.cuda.Stream()
        stream.wait_stream(main)
        with torch.cuda.stream(stream):
            losses = self._compute(step)
        main.wait_stream(stream)
        return losses

    def _capture(self, step: Step) -> None:
        self._buffers = Buffers(step)
        self._graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        # Other threads prepare the next step meanwhile: what they do is no part of the graph and does not break it.
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            losses = self._compute(self._buffers.step)
        self._losses = losses.detached()
        self._gradients = [(p, p.grad) for p in self._method.parameters() if p.grad is not None]


def steps_of(
    method: Method,
    scaler: torch.amp.GradScaler,
    device: torch.device,
    say: Callable[[str], None],
    *,
    shared: bool = False,
) -> Compute:
    """Return how a phase's steps are computed; on a GPU, say why not by a graph. shared: by ranks, or in units."""
    compute = computation(method, scaler, device)
    reason = refusal(method.config, device, method)
    if shared and reason is None:
        reason = "ranks exchange outputs within a step"
    if reason is None:
        return Graph(compute, method)
    if device.type == "cuda" and method.config.cuda_graph != "off":
        say(f"no CUDA graph: {reason}")
    return compute
