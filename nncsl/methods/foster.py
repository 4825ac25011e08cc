"""FOSTER: a new branch learns what the old network can't tell apart, then both are compressed into one network."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from nncsl import objectives, optim, replay
from nncsl.batches import Batch, Draws, Moment
from nncsl.config import Config
from nncsl.data.tasks import Task
from nncsl.errors import ConfigError
from nncsl.methods import schedules
from nncsl.methods.base import Answer, Asked, Losses, Method, Phase, Step, head_logits
from nncsl.networks import Network
from nncsl.replay import Memory, Ranking
from nncsl.steps.transfer import constant

TEMPERATURE = 2.0
SHARES = {"boost": 170 / 300, "compress": 130 / 300}  # of the steps of a task after the first


@dataclass(frozen=True)
class FosterSettings:
    """SGD with a cosine to zero in every phase; compression has no weight decay.

    betas: how much rare classes are favored in boosting, in tasks 2, 3, ..., the last one in all that follow;
    compression_beta: the same in compression. 0: all classes alike.
    """

    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    betas: tuple[float, ...] = (0.96,)
    compression_beta: float = 0.97
    views: Literal["weak", "strong", "support"] = "weak"

    def __post_init__(self) -> None:
        if not self.betas:
            raise ConfigError("own.betas=[]: expected one number or more, from 0 to under 1")


class FOSTER(Method):
    """Boosting, then compression, in every task after the first. ``network`` is what trains, ``other`` rests.

    Boosting: ``other`` is the old network, ``network`` starts as its copy and becomes the new branch; ``fc`` judges by
    both's features, old ones first, ``aux`` by the new ones. Compression: they change places, so that the student,
    ``network``, starts as the old one again, and ``other`` is the new branch of its teacher.
    two_branch_accuracy is that of tasks 2, 3, ...: the first has no two branches.
    """

    Settings: ClassVar[type] = FosterSettings
    measured: ClassVar[dict[str, str]] = {"boost": "two_branch_accuracy"}
    decides_by: ClassVar[str | None] = "the head"
    own: FosterSettings
    other: Network
    fc: nn.Linear
    aux: nn.Linear
    seen: Tensor  # classes, old ones first, int64 [S]: all logits [n, S] below are in this order
    boosting: bool = False  # or just done with it

    def __init__(self, network: Network, config: Config, own: FosterSettings) -> None:
        super().__init__(network, config, own)
        if config.teacher_mode == "none" and config.tasks > 1:
            raise ConfigError(
                "teacher_mode='none': foster needs its old network after the first task; use --teacher-mode features "
                "or model"
            )

    def phases(self, task: Task) -> list[Phase]:
        epochs, rate = self.config.epochs, schedules.cosine()
        if not task.old:
            return [Phase("train", epochs, task.steps, rate)]
        parts = {name: max(1, round(share * epochs)) for name, share in SHARES.items()}
        steps = {name: max(1, round(share * epochs * task.steps / parts[name])) for name, share in SHARES.items()}
        return [Phase(name, parts[name], steps[name], rate) for name in SHARES]

    def begin(self, phase: Phase, task: Task) -> list[torch.optim.Optimizer]:
        self.register_buffer("seen", torch.tensor(task.seen))
        self.boosting = phase.name == "boost"
        if phase.name == "boost":
            head = self.network.head
            self.other = copy.deepcopy(self.network).requires_grad_(False)
            self.fc = widened(head, task.old)
            self.aux = nn.Linear(head.in_features, head.out_features).to(head.weight)
        if phase.name == "compress":
            self.network, self.other = self.other.requires_grad_(True), self.network.requires_grad_(False)
            self.fc.requires_grad_(False)
            del self.aux
        trained = [p for p in self.parameters() if p.requires_grad]
        decay = 0.0 if phase.name == "compress" else self.own.weight_decay
        groups = optim.with_backbone_rate([{"params": trained, "lr": self.own.lr}], [self], self.config)
        return [torch.optim.SGD(groups, lr=self.own.lr, momentum=self.own.momentum, weight_decay=decay)]

    def mode(self, phase: Phase, task: Task) -> None:
        super().mode(phase, task)
        if phase.name != "train":
            self.other.eval()

    def asks(self, phase: Phase, task: Task, memory: Memory) -> dict[str, Asked]:
        if not task.old:
            return {}
        answer = old_features if phase.name == "boost" else two_branch_logits
        ids = np.concatenate([task.labeled, memory.ids])
        return {"labeled": Asked(self.own.views, ids, answer, role="support", unit=False)}

    def draw(self, draws: Draws, now: Moment) -> Batch:
        ids = draws.merged(now, self.config.labeled_batch)
        return {"labeled": draws.labeled_views(self.own.views, ids, now, 1)}

    def uncaptured(self) -> str:
        return ""

    def losses(self, step: Step) -> Losses:
        (outputs,) = step.see("labeled")
        labels = objectives.positions(step.labels("labeled"), step.task.seen)
        if step.phase.name == "boost":
            return self.boost(step, outputs.features, labels)
        logits = self.network.head(outputs.features)[:, self.seen]
        if step.phase.name == "train":
            loss = objectives.lin_loss(logits, labels)
            return Losses(loss, {"lin": loss})
        loss = compression_loss(logits, step.targets["labeled"], self.weights(step, self.own.compression_beta))
        return Losses(loss, {"compress": loss})

    def boost(self, step: Step, new: Tensor, labels: Tensor) -> Losses:
        """Return the losses of boosting: new branch's features [n, F], labels [n] as places in ``seen``."""
        old, past = step.targets["labeled"].to(new), len(step.task.old)
        logits = self.fc(torch.cat([old, new], dim=1))[:, self.seen]
        beta = self.own.betas[: step.task.index][-1]
        parts = {
            "boost": objectives.lin_loss(logits / self.weights(step, beta), labels),
            "aux": objectives.lin_loss(self.aux(new)[:, self.seen], labels),
            "kd": objectives.softened_loss(logits[:, :past], self.other.head(old)[:, self.seen[:past]], TEMPERATURE),
        }
        return Losses(parts["boost"] + parts["aux"] + parts["kd"], parts)

    def weights(self, step: Step, beta: float) -> Tensor:
        """Return the weights [S] of the seen classes, by their images in the training set."""
        labels = np.concatenate([step.task.labels, step.memory.labels])
        counts = np.bincount(labels, minlength=step.task.num_classes)[list(step.task.seen)]
        return constant(tuple(class_weights(torch.from_numpy(counts), beta).tolist()), self.seen.device, torch.float32)

    def rank(self, task: Task, memory: Memory, answers: Callable[[np.ndarray, Answer], Tensor]) -> Ranking:
        if self.config.memory_selection == "random" or not self.config.memory:
            return super().rank(task, memory, answers)
        return replay.herded_ranking(answers(task.labeled, lambda m, x: m.network(x).features), task.labeled)

    def predict(self, images: Tensor) -> Tensor:
        known = two_branch_logits(self, images) if self.boosting else head_logits(self, images)[:, self.seen]
        scores = known.new_full((len(images), self.network.head.out_features), float("-inf"))
        return scores.index_copy(1, self.seen, known)

    def predicting(self) -> Network | None:
        return None if self.boosting else self.network


def old_features(method: FOSTER, images: Tensor) -> Tensor:
    """Answer with the old network's features [n, F] while the new branch is trained."""
    return method.other(images).features


def two_branch_logits(method: FOSTER, images: Tensor) -> Tensor:
    """Answer with the logits [n, S] of both branches together: in boosting, and when compression begins."""
    old, new = (method.other, method.network) if method.boosting else (method.network, method.other)
    features = torch.cat([old(images).features, new(images).features], dim=1)
    return method.fc(features)[:, method.seen].float()


def widened(head: nn.Linear, old: Sequence[int]) -> nn.Linear:
    """Return a head for two branches' features: what ``head`` knows of old classes, for the first; the rest is new."""
    size, rows = head.in_features, list(old)
    made = nn.Linear(2 * size, head.out_features).to(head.weight)
    with torch.no_grad():
        made.weight[rows, :size] = head.weight[rows]
        made.bias[rows] = head.bias[rows]
    return made


def class_weights(counts: Tensor, beta: float) -> Tensor:
    """Return (1 - beta) / (1 - beta^n) of classes with n images [S], scaled to mean 1, fp64; none counts as one."""
    weights = (1 - beta) / (1 - beta ** counts.clamp(min=1).double())
    return weights / weights.mean()


def compression_loss(logits: Tensor, teacher_logits: Tensor, weights: Tensor) -> Tensor:
    """Distillation of softened logits [n, S], the teacher's probabilities first multiplied by weights [S]."""
    return objectives.softened_loss(logits, teacher_logits + TEMPERATURE * weights.log(), TEMPERATURE)
