"""X-DER (Boschini et al., 2022): stored logits are kept up to date, and outputs of classes to come are prepared.

The head is cut into one slice per task: past ones, the present one, future ones. Terms, their order and which passes
update running statistics are those of the public code; the memory is the loop's. Nothing in a step compares present
with past classes on the task's own images, so the newest task is the weakest until the next one has been learned.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nncsl import passes
from nncsl.accounting import row_bytes
from nncsl.batches import Batch, Draws, Moment, Render
from nncsl.config import Config
from nncsl.data.division import divided
from nncsl.data.tasks import Task
from nncsl.methods import slices
from nncsl.methods.base import Losses, Step
from nncsl.methods.derpp import DERpp, DERppSettings, weighted_sum
from nncsl.networks import Network
from nncsl.replay import Memory
from nncsl.steps.transfer import constant, send


@dataclass(frozen=True)
class XDERSettings(DERppSettings):
    """Weights of the terms, and what they are made of.

    contrast_*: future slices tell classes apart, by the task's images and contrast_batch remembered ones, in strong
    views; distance_weight: remembered images keep how they lie to each other there. constraint_weight: future logits
    stay margin below those of the label's slice, past probabilities (past_constraint) below the present ones.
    shrink: how large the largest renewed logit is that would exceed the label's, as a part of that.
    """

    alpha: float = 0.3
    beta: float = 0.8
    contrast_weight: float = 0.05
    contrast_views: int = 4
    contrast_temperature: float = 5.0
    contrast_batch: int = 64
    distance_weight: float = 0.0
    constraint_weight: float = 0.1
    margin: float = 0.3
    past_constraint: bool = False
    shrink: float = 0.85


class XDER(DERpp):
    """The task's images train the present slice, remembered ones the past slices, contrasts between both the future."""

    Settings: ClassVar[type] = XDERSettings
    own: XDERSettings
    slices: Tensor  # int64 [T, k], the classes of each slice; C, which is none, where one has fewer than others
    slice_of: Tensor  # int64 [C]
    counters: Tensor  # int64 [m], how often each image of the store was met in this task

    def __init__(self, network: Network, config: Config, own: XDERSettings) -> None:
        super().__init__(network, config, own)
        order = torch.tensor(config.class_order or range(network.head.out_features))
        given = config.task_sizes if sum(config.task_sizes or ()) == len(order) else divided(len(order), config.tasks)
        # At least one class in each: the planner rehearses with a network that has a single output.
        self.tasks_classes = order.split([size for size in given or () if size])
        padded = nn.utils.rnn.pad_sequence(list(self.tasks_classes), batch_first=True, padding_value=len(order))
        self.register_buffer("slices", padded, persistent=False)
        numbers = torch.cat([torch.full_like(classes, index) for index, classes in enumerate(self.tasks_classes)])
        self.register_buffer("slice_of", numbers[order.argsort()], persistent=False)
        self.register_buffer("counters", torch.zeros(0, dtype=torch.int64))

    @classmethod
    def uncontinued(cls, *, grown: bool) -> str:
        return "xder trains the outputs of every later task from the first one on, so all have to be known then"

    def draw(self, draws: Draws, now: Moment) -> Batch:
        batch, own = super().draw(draws, now), self.own
        if draws.task.index + 1 < len(self.slices) and (own.contrast_weight or own.distance_weight):
            remembered = draws.choose(np.sort(draws.memory.ids), now, own.contrast_batch, "contrast")
            ids = np.concatenate([batch["labeled"].keys.ids, remembered]) if "labeled" in batch else remembered
            batch["contrast"] = draws.labeled_views("strong", ids, now, own.contrast_views)
        return batch

    def classes(self, first: int, end: int | None = None) -> Tensor:
        """Return the classes of some slices, one after the other: int64 [n]."""
        those = torch.cat([torch.zeros(0, dtype=torch.int64), *self.tasks_classes[first:end]])
        return constant(tuple(those.tolist()), self.slices.device, torch.int64)

    def sliced(self, logits: Tensor, first: int) -> Tensor:
        """Return the logits [n, C] of each slice from some one on, filled up with 0 where it is shorter: [s, n, k]."""
        ragged = len({len(classes) for classes in self.tasks_classes}) > 1
        return (F.pad(logits, (0, 1)) if ragged else logits)[:, self.slices[first:]].transpose(0, 1)

    def notes(self, batch: Batch, task: Task) -> dict[str, np.ndarray]:
        """Return, of both memory batches, where each image first stands, and rows of the store that are met again."""
        found, stored = super().notes(batch, task), len(self.stored_ids) > 0
        if "logit_replay" in batch:
            both = np.concatenate([batch[name].keys.ids for name in ("logit_replay", "label_replay")])
            ids, found["distinct"] = np.unique(both, return_index=True)
            if stored:
                found["distinct stored"] = self.rows(ids)
        if "contrast" in batch and stored:
            images = len(batch["contrast"]) // self.own.contrast_views
            old = np.flatnonzero(batch["contrast"].old[:images])
            found["old"], found["old stored"] = old, self.rows(batch["contrast"].keys.ids[old])
        return found

    def uncaptured(self) -> str:
        return "xder draws which logits it renews within a step"

    def losses(self, step: Step) -> Losses:
        task, own = step.task, self.own
        parts: dict[str, Tensor] = {}
        met: list[tuple[Tensor, Tensor]] = []  # logits and labels
        if "labeled" in step.batch:
            labels = step.labels("labeled")
            logits = self.uncounted(step, "labeled") if task.index else self.logits(*step.see("labeled"))
            met.append((logits, labels))
            parts["lin"] = slices.slice_loss(logits, labels, task.classes)
            if own.past_constraint and task.old:
                seen = constant(task.seen, logits.device, torch.int64)
                excess = slices.past_excess(logits[:, seen], len(task.old), own.margin)
                parts["past"] = slices.mean_of_positive(excess)
        if "logit_replay" in step.batch:
            replayed, replayed_labels, replay_parts = self.replay(step)
            parts |= replay_parts
            met.append((replayed, replayed_labels))
        if "contrast" in step.batch:
            parts |= self.contrast(step)
        if task.index + 1 < len(self.slices):
            logits, labels = (rows[0] if len(rows) == 1 else torch.cat(rows) for rows in zip(*met, strict=True))
            same_slice = self.slice_of[labels][:, None] == self.slice_of
            excess = slices.future_excess(logits, same_slice, self.classes(task.index + 1), own.margin)
            parts["future"] = slices.mean_of_positive(excess)
        weights = {"lin": 1.0, "logits": own.alpha, "replay": own.beta, "contrast": own.contrast_weight}
        weights |= {"distance": own.distance_weight, "future": own.constraint_weight, "past": own.constraint_weight}
        return Losses(weighted_sum(parts, weights), parts)

    def uncounted(self, step: Step, name: str) -> Tensor:
        """Return logits [n, C] of a group, from a pass that running statistics don't count."""
        with passes.statistics_untouched(self.network):
            return self.logits(*step.see(name))

    def replay(self, step: Step) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return logits [n, C], labels [n] of all images in two memory batches, and their losses; renew their store."""
        task, names = step.task, ("logit_replay", "label_replay")
        count, distinct = len(step.batch["logit_replay"]), step.notes["distinct"]
        # Running statistics count this pass alone: past tasks' images, and as many of this task as of each of those.
        company = (
            [step.pixels["labeled"][: self.config.labeled_batch // task.index]] if "labeled" in step.pixels else []
        )
        by_logits = self.logits(step.forward(torch.cat([step.pixels["logit_replay"], *company])))[:count]
        by_labels = self.uncounted(step, "label_replay")
        parts = {"replay": slices.slice_loss(by_labels, step.labels("label_replay"), task.old)}
        logits = torch.cat([by_logits, by_labels])[distinct]
        labels = torch.cat([step.labels(name) for name in names])[distinct]
        if len(self.stored_ids):
            parts["logits"] = F.mse_loss(by_logits, self.stored_logits[step.notes["stored"]])
            rows = step.notes["distinct stored"]
            self.counters[rows] += 1
            chance = send(torch.rand(len(rows), generator=step.generator("renewal")), rows.device)
            self.renew(rows, labels, logits, self.classes(task.index), chance * self.counters[rows] < 1)
        return logits, labels, parts

    def contrast(self, step: Step) -> dict[str, Tensor]:
        """Return the losses of the future slices on strong views."""
        group, future = step.batch["contrast"], step.task.index + 1
        vectors = self.sliced(self.uncounted(step, "contrast"), future)  # [slices, views * n, k]
        labels = step.labels("contrast")
        parts = {"contrast": slices.supervised_contrast(vectors, labels, self.own.contrast_temperature)}
        images = len(group) // self.own.contrast_views
        if self.own.distance_weight and len(step.notes.get("old", ())):
            by_view = vectors.unflatten(1, (-1, images))[:, :, step.notes["old"]]  # [slices, views, remembered, k]
            stored = self.sliced(self.stored_logits[step.notes["old stored"]], future)
            parts["distance"] = slices.distance_loss(by_view, stored[:, None])
        return parts

    def will_keep(self, remembered: int, met: int) -> tuple[int, int]:
        images, size = super().will_keep(remembered, met)
        return images, size + remembered * row_bytes(self.counters)

    @torch.no_grad()
    def renew(self, rows: Tensor, labels: Tensor, logits: Tensor, those: Tensor, chosen: Tensor | None = None) -> None:
        """Overwrite classes ``those`` [k] of the store's rows [n] by logits [n, C], none above that of labels [n].

        chosen: bool [n], where the others stay as they are; to leave them out would wait for their number.
        """
        own, place = self.stored_logits[rows, labels], (rows[:, None], those)
        renewed = slices.shrunk(logits[:, place[1]], own, self.own.shrink)
        kept = renewed if chosen is None else torch.where(chosen[:, None], renewed, self.stored_logits[place])
        self.stored_logits[place] = kept.to(self.stored_logits.dtype)

    def end(self, task: Task, memory: Memory, render: Render) -> None:
        super().end(task, memory, render)
        if task.old:
            old = np.isin(memory.labels, task.old)
            rows, labels = self.here(self.rows(memory.ids)), self.here(memory.labels)
            known, new = self.here(old), self.here(~old)
            inserted, again = self.stored_logits[rows[new]], self.logits_of_images(memory.ids[old], render)
            self.renew(rows[new], labels[new], inserted, self.classes(0, task.index))
            self.renew(rows[known], labels[known], again, self.classes(task.index))
        self.register_buffer("counters", torch.zeros_like(self.stored_ids))
