"""Where the old network's answers come from: a bank of them, a copy of it, or nowhere. One seam, one method.

At the start of a task the student still is the teacher. ``BankTeacher`` uses that moment to write down everything the
teacher will be asked; ``ModelTeacher`` copies the network, as the paper does.
"""

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from nncsl.batches import LABELED_VIEWS, Batch, Pool, ViewKeys
from nncsl.data.policy import KINDS, ViewPolicy
from nncsl.featurebank import FeatureBank
from nncsl.networks import Network
from nncsl.passes import in_parts, inference_batch

# Pixels of views, by their keys.
Render = Callable[[ViewKeys], Tensor]
# Network and images to what is distilled: unit projections, or logits.
Answer = Callable[[Network, Tensor], Tensor]


class Targets(NamedTuple):
    """The teacher's answers: queries [views * N, D] for all unlabeled views, supports [R, D] for the old supports."""

    queries: Tensor
    supports: Tensor


class Pixels(NamedTuple):
    """The rendered views of a batch; ``supports`` holds all of them, old and current."""

    large: Tensor
    small: Tensor
    supports: Tensor


class Teacher(Protocol):
    def targets(self, batch: Batch, pixels: Pixels) -> Targets | None:
        """The teacher's answers on exactly this batch's views, without gradient; None where there is no teacher."""
        ...


class NoTeacher:
    """Nothing is distilled."""

    def targets(self, batch: Batch, pixels: Pixels) -> None:
        return None


class ModelTeacher:
    """A frozen copy of the network, evaluated at every step: the paper's way."""

    def __init__(self, network: Network, answer: Answer, micro_batch: int = 0) -> None:
        self.network = copy.deepcopy(network).eval().requires_grad_(False)
        self._answer = answer
        self._micro_batch = micro_batch

    def targets(self, batch: Batch, pixels: Pixels) -> Targets:
        old = torch.from_numpy(batch.old)
        parts = [view for view in (pixels.large, pixels.small) if len(view)]
        with torch.no_grad():
            queries = torch.cat([self._ask(part) for part in parts])
            supports = pixels.supports[old.to(pixels.supports.device)]
            return Targets(queries, self._ask(supports) if len(supports) else queries[:0])

    def _ask(self, images: Tensor) -> Tensor:
        return in_parts(lambda part: self._answer(self.network, part), images, self._micro_batch)


class BankTeacher:
    """The teacher's answers, read from the feature bank by the keys of the views; no second network exists."""

    def __init__(self, bank: FeatureBank, device: torch.device) -> None:
        self._bank = bank
        self._device = device

    def targets(self, batch: Batch, pixels: Pixels) -> Targets:
        queries = [self._read(keys) for keys in (batch.large, batch.small) if len(keys)]
        return Targets(torch.cat(queries), self._read(batch.old_supports))

    def _read(self, keys: ViewKeys) -> Tensor:
        return self._bank.read(keys.ids, bank_slots(keys), device=self._device)


def bank_slots(keys: ViewKeys) -> np.ndarray:
    """The bank knows one number per view of an image: kind and slot in one."""
    return keys.slots * len(KINDS) + KINDS.index(keys.kind)


def unit_projections(network: Network, images: Tensor) -> Tensor:
    """What NND and feature distillation store: L2-normalized projections [n, D], fp32."""
    return F.normalize(network(images).projections.float(), dim=-1)


def head_logits(network: Network, images: Tensor) -> Tensor:
    """What logit distillation stores: logits over all classes [n, C], fp32."""
    return network.head(network(images).features).float()


def sweep(
    bank: FeatureBank,
    network: Network,
    answer: Answer,
    render: Render,
    policy: ViewPolicy,
    *,
    unlabeled: np.ndarray,
    labeled: np.ndarray,
    replay: np.ndarray,
    pool: Pool,
    track: Callable[[list], Iterable],
) -> None:
    """Writes the network's answers on every view of the pool into the bank's open generation and commits it.

    The network is in eval mode meanwhile and as it was before afterwards.
    """
    was_training = [module.training for module in network.modules()]
    network.eval()
    with torch.no_grad():
        for role, keys in track(list(_pool_views(network, policy, unlabeled, labeled, replay, pool))):
            bank.write(keys.ids, bank_slots(keys), answer(network, render(keys)), role=role)
    bank.commit()
    for module, training in zip(network.modules(), was_training, strict=True):
        module.training = training


def _pool_views(
    network: Network, policy: ViewPolicy, unlabeled: np.ndarray, labeled: np.ndarray, replay: np.ndarray, pool: Pool
) -> Iterator[tuple[str, ViewKeys]]:
    """Every view the pool holds, in batches of one kind and slot over sorted images."""
    counts = {"large": policy.large.count, "small": policy.small.count, "support": LABELED_VIEWS}
    wanted = [("unlabeled", "large", unlabeled), ("unlabeled", "small", unlabeled)]
    wanted += [("replay", "support", replay), ("support", "support", labeled)]
    for role, kind, ids in wanted:
        ids = np.sort(ids)
        batch = inference_batch(network, policy.crop(kind).size)
        for slot in pool.slots(kind, counts[kind]):
            for start in range(0, len(ids), batch):
                part = ids[start : start + batch]
                yield role, ViewKeys(kind, part, np.full(len(part), slot))
