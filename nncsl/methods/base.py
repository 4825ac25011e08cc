"""What a method is to the loop: a module that owns its network, and says what a step draws and what it minimizes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from nncsl import networks, optim, replay
from nncsl.batches import Batch, Draws, Moment, Render
from nncsl.config import Config
from nncsl.data.rng import stream_key
from nncsl.data.tasks import Task
from nncsl.methods import schedules
from nncsl.methods.losses import Losses
from nncsl.networks import Network, Outputs
from nncsl.passes import Forward, together
from nncsl.replay import Memory, Ranking


@dataclass(frozen=True)
class NoSettings:
    """A method without settings of its own."""


class Phase(NamedTuple):
    """A part of a task's training: ``epochs`` of ``steps``, and the schedule of its optimizers' rates."""

    name: str
    epochs: int
    steps: int
    rate: schedules.Rate

    def progress(self, now: Moment) -> float:
        """Return which part of the phase is over, in [0, 1)."""
        return now.number / (self.epochs * self.steps)


# From a method and pixels to rows [n, D].
Answer = Callable[[Any, Tensor], Tensor]


class Asked(NamedTuple):
    """What the network, as it is when a phase begins, is asked during the phase, of all views of a kind of some images.

    kind: that of the group's views, or "plain": one answer for each image, whatever view of it the group shows.
    role: as whose rows a bank keeps them; unit: rows have length 1.
    """

    kind: str
    ids: np.ndarray
    answer: Answer
    role: str = "unlabeled"
    unit: bool = True


class Step(NamedTuple):
    """One step: what was drawn, its pixels, the old network's answers to what was asked of it, and where we are.

    targets: by the name of a group, rows [n, D] for those of its views that were asked about; forward: the network's
    pass, in the memory that the run has; render: pixels of other views; memory: what is replayed in this task;
    known: labels, by group, and notes: what the method noted of the batch, both where the pixels are.
    """

    batch: Batch
    pixels: Mapping[str, Tensor]
    targets: Mapping[str, Tensor]
    task: Task
    phase: Phase
    now: Moment
    seed: int
    forward: Forward
    render: Render
    memory: Memory = Memory()
    known: Mapping[str, Tensor] = MappingProxyType({})
    notes: Mapping[str, Tensor] = MappingProxyType({})

    @property
    def progress(self) -> float:
        """Which part of the phase is over, in [0, 1)."""
        return self.phase.progress(self.now)

    def generator(self, name: str) -> torch.Generator:
        """Return random numbers of this step for a purpose, on the host: the same ones in a resumed run."""
        key = stream_key(self.seed, name, self.task.index, self.now.phase, self.now.number)
        return torch.Generator().manual_seed(key >> 1)  # torch takes 63 bits

    def see(self, *names: str) -> list[Outputs]:
        """Return the network's outputs for groups of one size, from one pass: they share a BatchNorm batch."""
        joined, sizes = self.see_joined(*names), [len(self.batch[name]) for name in names]
        if len(names) == 1:
            return [joined]
        return [Outputs(*rows) for rows in zip(*(part.split(sizes) for part in joined), strict=True)]

    def see_joined(self, *names: str) -> Outputs:
        """Return the same in one piece, the groups' rows standing one after the other."""
        return self.forward(together(self.pixels, names))

    @property
    def views(self) -> int:
        """How many views were drawn."""
        return sum(map(len, self.batch.values()))

    def labels(self, name: str) -> Tensor:
        """Return the labels of a group, int64 [n], where its pixels are."""
        labels = self.batch[name].labels
        if labels is None:
            raise ValueError(f"the labels of group {name!r} are hidden")
        return self.known[name] if name in self.known else labels.to(self.pixels[name].device)


def unit_projections(method: "Method", images: Tensor) -> Tensor:
    """Answer with L2-normalized projections [n, D]."""
    return networks.unit_projections(method.network, images)


def head_logits(method: "Method", images: Tensor) -> Tensor:
    """Answer with the head's logits over all classes [n, C]."""
    return networks.head_logits(method.network, images)


class Method(nn.Module):
    """A system under the common protocol. A new one is a subclass in its own file and a line in METHODS.

    Whatever it has to remember is a parameter or a buffer (``register_buffer``, of any size): then checkpoints have it.
    """

    Settings: ClassVar[type] = NoSettings  # a dataclass: own settings, by NAME.yaml beside the file and --set own.KEY
    uses_memory: ClassVar[bool] = True
    one_task: ClassVar[bool] = False  # all classes at once
    remembers_first: ClassVar[bool] = False  # the memory takes in a task's images before its training, not after
    remembers_all: ClassVar[bool] = False  # every labeled image stays, whatever size of a memory is configured
    counted_apart: ClassVar[tuple[str, ...]] = ()  # modules whose bytes are told apart from the student's
    draws_ahead: ClassVar[bool] = True  # `draw` and `notes` depend on nothing that a step changes
    guessed: ClassVar[tuple[str, ...]] = ("large", "unlabeled")  # groups that losses may have guesses of
    # Phases after which `predict` is measured too, and by what name the accuracies over seen classes are kept.
    measured: ClassVar[Mapping[str, str]] = {}

    # What happens in a task without labels where the memory has some, for people; and why there can be no such task.
    without_labels: ClassVar[str] = "only remembered labels train"
    needs_labels: ClassVar[str] = ""
    weighs_labels: ClassVar[bool] = False  # whether lambda_lin is read, the weight of labels in the backbone
    sees_features: ClassVar[bool] = False  # a frozen backbone's features of its views, large, small, support, would do
    classifies: ClassVar[bool] = True  # whether `predict` means anything, so that accuracies do
    decides_by: ClassVar[str | None] = None  # what `predict` judges by, in words, where that is not the head

    def __init__(self, network: Network, config: Config, own: Any) -> None:
        super().__init__()
        self.network, self.config, self.own = network, config, own
        self._fetched: dict[str, tuple[Tensor, int, Tensor]] = {}

    def phases(self, task: Task) -> list[Phase]:
        """Return the parts of a task's training, in order; default: one, with the configured schedule."""
        return [Phase("train", self.config.epochs, task.steps, schedules.configured(self.config))]

    def begin(self, phase: Phase, task: Task) -> list[torch.optim.Optimizer]:
        """Make the phase's modules, on any device, and return its optimizers. Initial values may be random.

        A resumed run calls this for everything that had begun, so that modules exist, and then loads their values:
        meanwhile it finds the method's own buffers as they were saved, and other values as they happen to be.
        """
        return [optim.build(self, self.config)]

    def prepare(self, phase: Phase, task: Task, memory: Memory, render: Render) -> None:
        """Look at images before a phase's first step, in eval mode and without gradients, and fill buffers with that.

        A resumed run does not call this again: it has the buffers. render: as in :meth:`end`.
        """

    def mode(self, phase: Phase, task: Task) -> None:
        """Set train and eval modes for the phase's steps; default: training, BatchNorm as configured."""
        frozen = self.config.batchnorm == "freeze-after-first" and task.index > 0
        networks.set_training(self, freeze_batchnorm=frozen)

    def asks(self, phase: Phase, task: Task, memory: Memory) -> dict[str, Asked]:
        """Return what the steps will want to know of the network as it is now, by group; default: nothing."""
        return {}

    def draw(self, draws: Draws, now: Moment) -> Batch:
        """Return the groups of views of one step."""
        raise TypeError(f"{type(self).__name__} has to define draw()")

    def notes(self, batch: Batch, task: Task) -> dict[str, np.ndarray]:
        """Return what the losses need to know of a batch besides labels: rows to choose, labels renumbered, ...

        All of it is known on the host before the device begins. It travels with the batch and is found in
        ``step.notes``: a loss that makes its own masks and copies waits for the device at each of them.
        """
        return {}

    def losses(self, step: Step) -> Losses:
        """Return the losses of one step."""
        raise TypeError(f"{type(self).__name__} has to define losses()")

    def rank(self, task: Task, memory: Memory, answers: Callable[[np.ndarray, Answer], Tensor]) -> Ranking:
        """Return in which order images of a class are preferred for the memory; default: as configured.

        answers(ids, answer): what the network says of plain images, [n, D], on the host.
        """
        if self.config.memory_selection == "random" or not self.config.memory:
            return replay.random_ranking(self.config.seed)
        return replay.herded_ranking(answers(task.labeled, unit_projections), task.labeled)

    def end(self, task: Task, memory: Memory, render: Render) -> None:
        """Conclude a task, in eval mode and without gradients: after the memory's update, before measuring.

        render: pixels of any views of visible images, ``plain_keys(ids)`` for images as evaluation sees them. Modules
        are dropped in the next ``begin``, not here: a resumed run does not call this again.
        """

    def keeps(self) -> np.ndarray:
        """Return which earlier images the method itself remembers, besides the memory: int64 [n], they stay visible."""
        return np.zeros(0, np.int64)

    def will_keep(self, remembered: int, met: int) -> tuple[int, int]:
        """Return how many images :meth:`keeps` will name, and how many bytes :meth:`end` will have put into buffers.

        remembered: labeled images in the memory then; met: images of all tasks until then. ``--keep`` plans by this.
        """
        return 0, 0

    def samples(self, task: Task) -> dict[int, Tensor]:
        """Return images that the method makes, for the report: by class, [n, C, H, W], normalized."""
        return {}

    def predict(self, images: Tensor) -> Tensor:
        """Return scores [n, C] of plain images, in eval mode; minus infinity for classes that can't be judged."""
        return head_logits(self, images)

    def probabilities(self, scores: Tensor) -> Tensor:
        """Return class probabilities [n, k] in the order of the scores [n, k] that :meth:`predict` gave."""
        return scores.softmax(dim=1)

    def predicting(self) -> Network | None:
        """Return the network whose head alone is :meth:`predict`, for seen classes; None: it takes more than that."""
        return self.network if type(self).predict is Method.predict else None

    def seen_logits(self, features: Tensor, task: Task) -> Tensor:
        """Return the head's logits [n, C] of features [n, F], unseen classes at minus infinity."""
        logits = self.network.head(features)
        return logits.masked_fill(task.unseen_on(logits.device, logits.shape[1]), float("-inf"))

    def on_host(self, name: str) -> Tensor:
        """Return a buffer as the host sees it, fetched again only when it has changed: steps are drawn from these."""
        buffer = getattr(self, name)
        known = self._fetched.get(name)
        if known is None or known[0] is not buffer or known[1] != buffer._version:
            self._fetched[name] = known = (buffer, buffer._version, buffer.to("cpu", copy=True))
        return known[2]

    @classmethod
    def uncontinued(cls, *, grown: bool) -> str:
        """Return why no task can be added to a finished run; "" where one can. grown: its head needs more outputs."""
        return ""

    def uncaptured(self) -> str:
        """Return why no step can stand for the next ones; "" where only the contents of ``step``'s tensors differ.

        Then :mod:`nncsl.steps.graphs` may replay one: `losses` runs once, and numbers that it computes on the host or
        random ones that it draws stay as they were then.
        """
        return f"{type(self).__name__} does not say that its steps are all alike"

    def load_buffers(self, state: Mapping[str, Tensor], prefix: str = "") -> None:
        """Take the method's own buffers as they were saved: of another size, not there yet, or gone since."""
        device = next(self.parameters()).device
        names = [key.removeprefix(prefix) for key in state if key.startswith(prefix)]
        names = [name for name in names if "." not in name and name not in self._parameters]
        for name in self._buffers.keys() - set(names) - self._non_persistent_buffers_set:
            self._buffers[name] = None
        for name in names:
            self.register_buffer(name, state[prefix + name].to(device, copy=True))

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        self.load_buffers(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *rest)
