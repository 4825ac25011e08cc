"""DER++ (Buzzega et al., 2020): replay of images with their labels, and with the logits that they once had.

It holds the store of logits that X-DER builds on. The memory is the loop's, filled at the end of a task; so are the
logits, whereas the authors' reservoir takes both in while a task is learned.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from nncsl import passes
from nncsl.accounting import row_bytes
from nncsl.batches import Batch, Draws, Moment, Render, ViewKeys
from nncsl.config import Config
from nncsl.data.rng import permutation, stream_key
from nncsl.data.tasks import Task
from nncsl.methods.base import Losses, Step
from nncsl.methods.slices import slice_loss
from nncsl.methods.supervised import Finetune, SupervisedSettings
from nncsl.networks import Network, Outputs
from nncsl.replay import Memory


@dataclass(frozen=True)
class DERppSettings(SupervisedSettings):
    """alpha, beta: weights of the replay of logits and of labels."""

    alpha: float = 0.2
    beta: float = 0.5


class DERpp(Finetune):
    """Each batch of the task comes with two of the memory: one keeps its stored logits, the other its labels."""

    Settings: ClassVar[type] = DERppSettings
    uses_memory: ClassVar[bool] = True
    own: DERppSettings
    stored_ids: Tensor  # int64 [m]
    stored_logits: Tensor  # [m, C]

    def __init__(self, network: Network, config: Config, own: DERppSettings) -> None:
        super().__init__(network, config, own)
        self.register_buffer("stored_ids", torch.zeros(0, dtype=torch.int64))
        self.register_buffer("stored_logits", torch.zeros(0, network.head.out_features))

    def draw(self, draws: Draws, now: Moment) -> Batch:
        size, kind = self.config.labeled_batch, self.own.views
        batch = {}
        if len(draws.task.labeled):
            batch["labeled"] = draws.labeled_views(kind, draws.labeled(now, size), now, 1)
        if len(draws.memory.ids):
            for turn, name in enumerate(("logit_replay", "label_replay")):  # two draws, and other views in each
                ids = draws.choose(np.sort(draws.memory.ids), now, size, name)
                moments = np.full(len(ids), 2 * now.number + turn)
                batch[name] = draws.labeled_views(kind, ids, now, 1, moments)
        return batch

    def notes(self, batch: Batch, task: Task) -> dict[str, np.ndarray]:
        if "logit_replay" not in batch or not len(self.stored_ids):
            return {}
        return {"stored": self.rows(batch["logit_replay"].keys.ids)}

    def uncaptured(self) -> str:
        return ""

    def losses(self, step: Step) -> Losses:
        logits = {name: self.logits(*step.see(name)) for name in step.batch}  # a pass each: statistics of their own
        parts = {}
        if "labeled" in logits:
            parts["lin"] = slice_loss(logits["labeled"], step.labels("labeled"), step.task.seen)
        if "label_replay" in logits:
            parts["replay"] = slice_loss(logits["label_replay"], step.labels("label_replay"), step.task.seen)
        if "logit_replay" in logits and len(self.stored_ids):
            parts["logits"] = F.mse_loss(logits["logit_replay"], self.stored_logits[step.notes["stored"]])
        return Losses(weighted_sum(parts, {"lin": 1.0, "logits": self.own.alpha, "replay": self.own.beta}), parts)

    def end(self, task: Task, memory: Memory, render: Render) -> None:
        """Drop the logits of images that have left the memory, take in those of new ones."""
        new = np.isin(memory.labels, task.classes)
        kept = self.here(self.rows(memory.ids[~new]))
        logits = torch.cat([self.stored_logits[kept], self.logits_of_images(memory.ids[new], render)])
        self.register_buffer("stored_ids", torch.cat([self.stored_ids[kept], self.here(memory.ids[new])]))
        self.register_buffer("stored_logits", logits)

    def will_keep(self, remembered: int, met: int) -> tuple[int, int]:
        return 0, remembered * (row_bytes(self.stored_ids) + row_bytes(self.stored_logits))

    def rows(self, ids: np.ndarray) -> np.ndarray:
        """Return where the images, all of which have to be there, stand in the store: int64 [n]."""
        stored = self.on_host("stored_ids").numpy()
        order = np.argsort(stored)
        return order[np.searchsorted(stored, ids, sorter=order)] if len(ids) else ids

    def here(self, values: np.ndarray) -> Tensor:
        """Return the same values where the store is."""
        return torch.from_numpy(values).to(self.stored_ids.device)

    def logits(self, outputs: Outputs) -> Tensor:
        """Return the head's logits over all classes [n, C], in fp32 at least."""
        found = self.network.head(outputs.features)
        return found.to(torch.promote_types(found.dtype, torch.float32))

    def logits_of_images(self, ids: np.ndarray, render: Render) -> Tensor:
        """Return logits [n, C] of one view of each image, as training sees it; running statistics do not count it."""
        found = self.stored_logits.new_zeros(len(ids), self.stored_logits.shape[1])
        if not len(ids):
            return found
        size = passes.inference_batch(self.network, self.config.views.large.size)
        # Mixed, as the memory stands class by class: a batch of one class is none that training sees.
        mixed = permutation(stream_key(self.config.seed, "logits"), len(ids))
        self.network.train()
        with passes.statistics_untouched(self.network):
            for part in np.array_split(mixed, -(-len(ids) // size)):
                keys = ViewKeys(self.own.views, ids[part], np.zeros(len(part), np.int64))
                found[self.here(part)] = self.logits(self.network(render(keys).to(found.dtype)))
        self.network.eval()
        return found


def weighted_sum(parts: dict[str, Tensor], weights: dict[str, float]) -> Tensor:
    """Return the sum of all parts, each by its weight."""
    return torch.stack([weights[name] * part for name, part in parts.items()]).sum()
