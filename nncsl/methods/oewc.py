"""Online elastic weight consolidation: weights that earlier tasks depend on are held where those tasks left them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from nncsl.batches import Render, plain_keys
from nncsl.config import Config
from nncsl.data.tasks import Task
from nncsl.methods.base import Losses, Step
from nncsl.methods.supervised import Finetune, SupervisedSettings
from nncsl.networks import Network
from nncsl.passes import inference_batch
from nncsl.replay import Memory


@dataclass(frozen=True)
class OEWCSettings(SupervisedSettings):
    """strength: of the penalty (lambda); fisher_decay: what a task leaves of the importances before it (gamma).

    Plain SGD diverges where lr * strength * the largest importance exceeds 1: then a step overshoots by more than it
    corrects. Importances are small while the task's labels are learned by heart and can be large otherwise.
    """

    strength: float = 10.0
    fisher_decay: float = 1.0


class OEWC(Finetune):
    """Finetuning with a quadratic penalty on leaving the last task's weights, each by its importance so far."""

    Settings: ClassVar[type] = OEWCSettings
    own: OEWCSettings
    fisher: Tensor
    anchor: Tensor

    def __init__(self, network: Network, config: Config, own: OEWCSettings) -> None:
        super().__init__(network, config, own)
        # There from the start, so that a plan for a memory budget counts them.
        size = sum(parameter.numel() for parameter in self.guarded)
        self.register_buffer("fisher", torch.zeros(size))
        self.register_buffer("anchor", torch.zeros(size))

    @property
    def guarded(self) -> list[Tensor]:
        """What the loss reaches: backbone and head, not the projector."""
        network = self.network
        reached = (p for module in (network.stem, network.blocks, network.head) for p in module.parameters())
        return [p for p in reached if p.requires_grad]

    @classmethod
    def uncontinued(cls, *, grown: bool) -> str:
        return "oewc weighs every weight of a head of fixed size" if grown else ""

    def uncaptured(self) -> str:
        return ""

    def losses(self, step: Step) -> Losses:
        labeled = super().losses(step)
        if not step.task.old:
            return labeled
        ewc = penalty(flat(self.guarded), self.fisher, self.anchor)
        return Losses(labeled.total + self.own.strength * ewc, {**labeled.parts, "ewc": ewc})

    def end(self, task: Task, memory: Memory, render: Render) -> None:
        if not len(task.labeled):
            return  # nothing was learned
        found = fisher_information(self.log_likelihoods(task, render), self.guarded)
        self.fisher = self.own.fisher_decay * self.fisher + found
        self.anchor = flat(self.guarded)

    def log_likelihoods(self, task: Task, render: Render) -> Iterator[Tensor]:
        """Give log p(label | image) among the classes seen, for one labeled image of the task after the other."""
        size = inference_batch(self.network, self.config.views.large.size)
        for start in range(0, len(task.labeled), size):
            images = render(plain_keys(task.labeled[start : start + size]))
            for image, label in zip(images, task.labels[start : start + size].tolist(), strict=True):
                logits = self.seen_logits(self.network(image[None]).features, task)
                yield logits.log_softmax(dim=1)[0, label]


def fisher_information(log_likelihoods: Iterable[Tensor], parameters: Sequence[Tensor]) -> Tensor:
    """Return the mean over images of p (d log p / d theta)^2, flat [P]; log_likelihoods: each image's log p.

    Gradients are squared image by image: those of a batch's mean would cancel out. An iterator's values are taken one
    at a time, so that one image's activations are held at once.
    """
    total, images = torch.zeros_like(flat(parameters)), 0
    with torch.enable_grad():  # also for the iterator, which computes in here
        for log_p in log_likelihoods:
            squares = flat(torch.autograd.grad(log_p, parameters)).square()
            total += log_p.detach().exp() * squares
            images += 1
    return total / images


def penalty(weights: Tensor, fisher: Tensor, anchor: Tensor) -> Tensor:
    """Return the sum over weights of F (theta - theta*)^2; all flat [P]. There is no factor 1/2."""
    return (fisher * (weights - anchor).square()).sum()


def flat(tensors: Iterable[Tensor]) -> Tensor:
    """Return all values in one vector [P], in the order of their indices whatever their layout in memory."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])
