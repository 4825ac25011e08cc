"""ORDisCo: a generator replays the images that are not stored; its discriminator is kept from forgetting them.

The method has no public code, and no more than its abstract could be checked here. Players and constants are those of
the public code of Triple-GAN's second version, by the same group and with the same three players, where our own choice
is not named in :mod:`nncsl.methods.ordisco_settings`.
"""

import copy
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from nncsl import networks, optim
from nncsl.batches import Batch, Draws, Moment, Render, plain_keys
from nncsl.config import Config
from nncsl.data.rng import permutation, stream_key
from nncsl.data.tasks import Task
from nncsl.methods import schedules
from nncsl.methods.base import Losses, Method, Phase, Step
from nncsl.methods.ordisco_gan import Discriminator, Generator, to_generated_range, to_normalized
from nncsl.methods.ordisco_losses import chosen, consistency_loss, generator_loss, hinge_loss, ramp
from nncsl.methods.ordisco_settings import ORDisCoSettings
from nncsl.networks import Network
from nncsl.replay import Memory
from nncsl.steps.transfer import send

_SAMPLES = 20  # of each class, kept after each task


class ORDisCo(Method):
    """In each step the discriminator is updated ``d_steps`` times, here; then generator and classifier, by the loop.

    The loop's one backward pass keeps those two apart: the classifier sees generated images detached.
    """

    Settings: ClassVar[type] = ORDisCoSettings
    remembers_all: ClassVar[bool] = True
    decides_by: ClassVar[str | None] = "the head of the network's running average"
    counted_apart: ClassVar[tuple[str, ...]] = ("generator", "discriminator")
    own: ORDisCoSettings

    def __init__(self, network: Network, config: Config, own: ORDisCoSettings) -> None:
        super().__init__(network, config, own)
        size, channels, classes = config.views.large.size, len(config.views.mean), network.head.out_features
        self.average = copy.deepcopy(network).requires_grad_(False)
        self.generator = Generator(size, channels, own.channels, own.latent, classes)
        self.discriminator = Discriminator(size, channels, own.channels, classes)

    @classmethod
    def uncontinued(cls, *, grown: bool) -> str:
        return "ordisco's schedules run over all tasks, whose number has to be known when the first one begins"

    def phases(self, task: Task) -> list[Phase]:
        return [Phase("train", self.config.epochs, task.steps, schedules.constant())]

    def begin(self, phase: Phase, task: Task) -> list[torch.optim.Optimizer]:
        own, weights = self.own, list(self.network.parameters())
        rate = own.lr or (0.003 if own.optimizer == "adam" else 0.1)
        groups = optim.with_backbone_rate([{"params": weights, "lr": rate}], [self.network], self.config)
        kind = torch.optim.Adam if own.optimizer == "adam" else torch.optim.SGD
        self._of_classifier: torch.optim.Optimizer = kind(groups, rate)
        of_generator, self._of_discriminator = (
            torch.optim.Adam(player.parameters(), own.gan_lr, own.gan_betas)
            for player in (self.generator, self.discriminator)
        )
        return [self._of_classifier, of_generator, self._of_discriminator]

    def draw(self, draws: Draws, now: Moment) -> Batch:
        """Two views of each image, for the classifier and its average; one of each that the discriminator judges."""
        size = self.config.labeled_batch
        batch: Batch = {}
        for name, count, views in (("", size, 2), ("judged ", size * self.own.d_steps, 1)):
            moments = now.number * count + np.arange(count)  # an image that comes twice comes in different views
            known = draws.balanced(now, count, f"{name}labeled")
            unknown = np.resize(draws.choose(draws.task.unlabeled, now, count, f"{name}unlabeled"), count)
            batch[f"{name}labeled"] = draws.labeled_views("weak", known, now, views, moments)
            batch[f"{name}unlabeled"] = draws.views("weak", unknown, now, views, moments)
        return batch

    def uncaptured(self) -> str:
        return "ordisco updates its discriminator within a step, by weights that change"

    def losses(self, step: Step) -> Losses:
        own, task, now = self.own, step.task, self.passed(step.task, step.progress)
        if step.now.number:  # the loop updates the classifier after this function: its average follows in the next step
            self.follow(now)
        if own.optimizer == "adam":
            for group in self._of_classifier.param_groups:
                group["lr"] *= ramp(now, 0, own.ramp)
        pairs = (step.pixels[name].chunk(2) for name in ("labeled", "unlabeled"))
        first, second = map(torch.cat, zip(*pairs, strict=True))
        logits, targets = self.classify(step, first), self.average_logits(second, task)
        labels = step.labels("labeled").chunk(2)[0]
        guesses = torch.cat([rows[len(labels) :] for rows in (logits, targets)]).argmax(dim=1)
        total = F.cross_entropy(logits[: len(labels)], labels)
        parts = {"lin": total}
        if now >= own.alone:
            with networks.evaluating(self.network):
                doubted = self.classify(step, step.pixels["judged unlabeled"]).softmax(dim=1)
            with torch.autocast(first.device.type, enabled=False):  # its casts of weights would outlive their updates
                parts["discriminator"] = self.update_discriminator(step, doubted)
                made, classes = self.make(step, "made")
                parts["generator"] = generator_loss(self.discriminator, made, classes)
            images = to_normalized(made.detach(), self.config.views)
            recognized = self.classify(step, images)
            parts["generated"] = F.cross_entropy(recognized, classes)
            total = total + parts["generator"] + own.generated * ramp(now, *own.replay) * parts["generated"]
            logits = torch.cat([logits, recognized])
            targets = torch.cat([targets, self.average_logits(images, task)])
        parts["consistency"] = consistency_loss(logits, targets, len(task.seen))
        total = total + own.consistency * ramp(now, 0, own.ramp) * parts["consistency"]
        return Losses(total, parts, {"unlabeled": guesses})

    def update_discriminator(self, step: Step, guesses: Tensor) -> Tensor:
        """Update it, on other images each time; guesses: of the unlabeled ones, [n, C]. Return its mean loss."""
        rows = [step.pixels["judged labeled"], step.labels("judged labeled"), step.pixels["judged unlabeled"], guesses]
        found = []
        for number, part in enumerate(zip(*(each.chunk(self.own.d_steps) for each in rows), strict=True)):
            with torch.no_grad():
                made, classes = self.make(step, f"judged {number}")
            loss = self.discriminator_loss(made, classes, *part)
            loss.backward()  # type: ignore[no-untyped-call]
            self._of_discriminator.step()
            self._of_discriminator.zero_grad(set_to_none=True)  # or the loop would take a step of its own
            found.append(loss.detach())
        return torch.stack(found).mean()

    def discriminator_loss(
        self, made: Tensor, classes: Tensor, known: Tensor, labels: Tensor, unknown: Tensor, guesses: Tensor
    ) -> Tensor:
        """Return the loss on generated images, on labeled ones, and on unlabeled ones with guessed classes [n, C]."""
        real = to_generated_range(torch.cat([known, unknown]), self.config.views)
        scores = self.discriminator(torch.cat([made, real]))  # one pass: spectral norms are estimated anew in each
        false, true, doubted = scores.split([len(made), len(known), len(unknown)])
        hinge = hinge_loss(chosen(true, labels), chosen(false, classes), doubted, guesses, self.own.made_share)
        return hinge + self.own.anchoring * self.discriminator.drift()

    def make(self, step: Step, name: str) -> tuple[Tensor, Tensor]:
        """Return a batch of generated images in [-1, 1] and their classes, uniform over those seen."""
        count, random, seen = self.config.labeled_batch, step.generator(name), torch.tensor(step.task.seen)
        classes = send(seen[torch.randint(len(seen), (count,), generator=random)], step.pixels["labeled"].device)
        return self.generator(self.generator.noise(count, random), classes), classes

    def classify(self, step: Step, images: Tensor) -> Tensor:
        """Return the classifier's logits [n, C], unseen classes at minus infinity."""
        return at_least_single(self.seen_logits(step.forward(images).features, step.task))

    @torch.no_grad()
    def average_logits(self, images: Tensor, task: Task) -> Tensor:
        """Return those of its running average, which sees statistics of its own."""
        logits = self.average.head(self.average(images).features)
        return at_least_single(networks.mask_unseen(logits, task.seen_on(logits.device, logits.shape[1])))

    def passed(self, task: Task, progress: float) -> float:
        """Return which part of the whole run is over, at a part of a task."""
        return (task.index + progress) / self.config.tasks

    @torch.no_grad()
    def follow(self, now: float) -> None:
        """Move the running average towards the classifier."""
        decay = self.own.decays[now >= self.own.ramp]
        for mine, newest in zip(self.average.parameters(), self.network.parameters(), strict=True):
            mine.lerp_(newest, 1 - decay)

    def end(self, task: Task, memory: Memory, render: Render) -> None:
        now = self.passed(task, 1)
        self.follow(now)  # of the last step; the next task's first step has nothing to follow
        if now <= self.own.alone:
            return  # the discriminator has learned nothing that could matter
        order = permutation(stream_key(self.config.seed, "anchoring", task.index), len(task.unlabeled))
        images = render(plain_keys(np.sort(task.unlabeled[order[: self.own.anchoring_images]])))
        logits = networks.head_logits(self.network, images)
        classes = networks.mask_unseen(logits, task.seen_on(logits.device, logits.shape[1])).argmax(dim=1)
        self.discriminator.consolidate(to_generated_range(images, self.config.views), classes, tasks=task.index + 1)

    def generate(self, classes: Tensor, random: torch.Generator) -> Tensor:
        """Return an image of each class [n], as the classifier knows images: [n, C, H, W]."""
        return to_normalized(self.generator(self.generator.noise(len(classes), random), classes), self.config.views)

    def samples(self, task: Task) -> dict[int, Tensor]:
        device = next(self.parameters()).device
        random = torch.Generator().manual_seed(stream_key(self.config.seed, "samples") >> 1)  # torch takes 63 bits
        return {c: self.generate(torch.full((_SAMPLES,), c, device=device), random) for c in task.seen}

    def predict(self, images: Tensor) -> Tensor:
        return networks.head_logits(self.average, images)

    def predicting(self) -> Network | None:
        return self.average


def at_least_single(x: Tensor) -> Tensor:
    """Return what a pass in half precision gave in single precision, anything else as it is."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
