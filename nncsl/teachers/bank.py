"""The feature bank as teacher: swept when a phase begins, read at every step, refreshed and evicted in time."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nncsl import accounting, networks
from nncsl.batches import Batch, Pool, Render, ViewKeys, views_per_step
from nncsl.config import Config
from nncsl.data.policy import KINDS
from nncsl.data.tasks import Task
from nncsl.errors import UserError
from nncsl.featurebank import BankError, FeatureBank, fingerprint
from nncsl.interruption import Interrupted
from nncsl.methods.base import Asked, Method, Phase
from nncsl.passes import inference_batch
from nncsl.record import checkpoint, checksums
from nncsl.record.state import RunState
from nncsl.steps.divergence import diverged
from nncsl.teachers import Surroundings, Teacher, asked_keys

_LARGEST = torch.finfo(torch.float16).max  # of an answer that a bank can keep; sane ones are below a hundred


class _View(NamedTuple):
    asked: Asked
    keys: ViewKeys


class BankTeacher(Teacher):
    """The old network's answers, read by the keys of the views; no second network ever exists."""

    def __init__(self, method: Method, around: Surroundings) -> None:
        self._method, self._around, self._config = method, around, around.config
        self._ranks = around.ranks
        self._bank: FeatureBank | None = None  # of rank 0, which reads and writes for all
        self._saved_generation: int | None = None  # that the last checkpoint refers to
        self._dim = 0
        self._asks: Mapping[str, Asked] = {}

    def begin(
        self, asks: Mapping[str, Asked], phase: Phase, task: Task, render: Render, state: RunState, saved: Any
    ) -> None:
        self._asks, self._task, self._render, self._state = asks, task, render, state
        self._refreshes = refreshes(self._config, asks, phase)
        if not asks:
            return
        self._saved_generation = self._saved_generation or state.generation
        if state.generation is not None and self._bank is None and self._ranks.writes:
            self._bank = FeatureBank.open(
                self._around.folder / "bank",
                "a",
                generation=state.generation,
                teacher=str(state.teacher),
                residency=self._config.bank_residency,
                device=self._where,
            )
            views = self._bank.manifest.views
            if not isinstance(views, dict) or views.get("policy") != self._config.views.fingerprint():
                raise UserError(
                    f"{self._around.folder / 'bank'} holds features of views that this version of nncsl renders "
                    "otherwise: finish the run with the version that began it, or start it anew"
                )
        if state.generation is None:
            state.teacher = fingerprint(self._method.state_dict())
            if self._refreshes and self._ranks.writes:
                checkpoint.save(self._teacher_path, {"method": self._method.state_dict()})
            self._sweep(self._pool(0))
        self._dim = self._ranks.say(self._bank.dim if self._bank is not None else 0)
        self._count_memory()

    def pool(self, epoch: int) -> Pool:
        pool = self._pool(epoch)
        due = self._refreshes and epoch and epoch % self._config.bank_refresh_epochs == 0
        if due and self._state.step == 0:
            self._refresh(pool)
            self._count_memory()
        return pool

    def prepare(self, batch: Batch, *, whole: bool) -> dict[str, Any]:
        """How many rows each group will have, and what rank 0 fetched for all of them."""
        keys = {name: asked_keys(asked, batch[name]) for name, asked in self._asks.items() if name in batch}
        found: dict[str, Any] = {"counts": {name: len(each) for name, each in keys.items()}, "fetched": None}
        if self._bank is not None and keys:
            ids = np.concatenate([each.ids for each in keys.values()])
            found["fetched"] = self._bank.fetch(ids, np.concatenate([bank_slots(each) for each in keys.values()]))
        return found

    def targets(self, batch: Batch, pixels: Mapping[str, Tensor], asked: Mapping[str, Any]) -> dict[str, Tensor]:
        counts: dict[str, int] = asked["counts"]
        if not counts:
            return {}
        if self._bank is None:
            rows = torch.empty(sum(counts.values()), self._dim, device=self._around.device)
        else:
            rows = self._bank.decode(asked["fetched"])
        return dict(zip(counts, self._ranks.send(rows).split(list(counts.values())), strict=True))

    def kept(self) -> dict[str, int]:
        """The rows, as encoded, and the old network's weights where they rest on disk for a refresh."""
        if not self._asks or self._bank is None:
            return {}
        resting = accounting.state_bytes(self._method) if self._refreshes else 0
        return {"bank": self._bank.row_bytes, "teacher": resting}

    def after_save(self) -> None:
        """Evict what neither the checkpoint just written nor the one before it refers to."""
        if self._bank is not None:
            needed = {self._bank.generation, self._saved_generation}
            for generation in self._bank.generations:
                if generation.generation not in needed:
                    self._bank.evict(generation=generation.generation)
            self._saved_generation = self._state.generation

    def close(self) -> None:
        if self._bank is not None:
            self._bank.close()

    def _pool(self, epoch: int) -> Pool:
        every = self._config.bank_refresh_epochs
        kinds = sorted({asked.kind for asked in self._asks.values()})
        images = {
            kind: np.unique(np.concatenate([asked.ids for asked in self._asks.values() if asked.kind == kind]))
            for kind in kinds
        }
        return Pool(pool_sizes(self._config, kinds), images, replaced=epoch // every if every else 0)

    def _refresh(self, pool: Pool) -> None:
        """Sweep with the teacher's weights while the student's rest on disk: even now there is one network only."""
        student = self._teacher_path.with_name("student.pt")
        if self._ranks.writes:
            checkpoint.save(student, {"method": self._method.state_dict()})
        self._load(self._teacher_path)
        try:
            self._sweep(pool)
        finally:
            self._load(student)
        if self._ranks.writes:
            checksums.forget(self._around.folder, f"{student.parent.name}/{student.name}")
            student.unlink()

    def _load(self, path: Path) -> None:
        if self._ranks.writes:
            self._method.load_state_dict(checkpoint.load(path)["method"])
        self._ranks.send_module(self._method)

    def _sweep(self, pool: Pool) -> None:
        """Fill a new generation of the bank with the network's answers on the pool's views."""
        views = list(self._views(pool))
        turns = [views[start : start + self._ranks.count] for start in range(0, len(views), self._ranks.count)]
        with networks.evaluating(self._method), networks.autocast(self._config.precision, self._around.device):
            for turn in self._around.reporter.track(turns, "sweep: the teacher's features"):
                if self._ranks.agreed(self._around.interruption.requested):
                    raise Interrupted
                own = turn[self._ranks.rank] if self._ranks.rank < len(turn) else None
                rows = None if own is None else own.asked.answer(self._method, self._render(own.keys))
                rows = self._ranks.collect(rows, [len(view.keys) for view in turn])
                self._check(rows)
                if turn is turns[0] and self._ranks.writes:
                    self._begin_generation(pool, rows.shape[1], unit=turn[0].asked.unit)
                self._write(turn, rows)
                del rows  # before the next pass needs its place
        if self._bank is not None:
            self._bank.commit()
        self._state.generation = self._ranks.say(self._bank.generation if self._bank is not None else None)
        accounting.return_free_memory()

    def _check(self, rows: Tensor) -> None:
        """Stop a run whose weights are finite still, but not what they make of an image."""
        largest = rows.abs().max().item() if rows.numel() else 0.0
        if not largest <= _LARGEST:
            seen = f"the old network's answers reach {largest:g} at the beginning of task {self._task.index + 1}"
            raise diverged(self._config, self._around.folder, seen)

    def _write(self, views: list[_View], rows: Tensor) -> None:
        if self._bank is not None:
            for view, answers in zip(views, rows.split([len(view.keys) for view in views]), strict=True):
                self._bank.write(view.keys.ids, bank_slots(view.keys), answers, role=view.asked.role)

    def _begin_generation(self, pool: Pool, dim: int, *, unit: bool) -> None:
        config = self._config
        facts: dict[str, Any] = {
            "teacher": self._state.teacher,
            "task": self._task.index,
            "views": {"policy": config.views.fingerprint(), "seed": config.seed, "slots": dict(pool.sizes)},
            "dataset": self._around.dataset,
        }
        folder = self._around.folder / "bank"
        where: dict[str, Any] = {"residency": config.bank_residency, "device": self._where}
        if self._bank is None:
            with suppress(BankError, OSError):  # none is there yet; or one that no checkpoint can be resumed with
                self._bank = FeatureBank.open(folder, "a", verify=False, **where)
        if self._bank is not None:
            self._bank.begin_generation(**facts, dim=dim, normalized=unit)
            return
        self._bank = FeatureBank.create(
            folder,
            dim,
            config.bank_codec,
            overwrite=True,
            normalized=unit,
            **where,
            **facts,
        )

    def _views(self, pool: Pool) -> Iterator[_View]:
        """Every view that was asked about, in batches of one kind and slot over sorted images."""
        for asked in self._asks.values():
            ids = np.sort(asked.ids)
            batch = inference_batch(self._method.network, self._config.views.crop(asked.kind).size)
            for slot in pool.slots(asked.kind):
                for start in range(0, len(ids), batch):
                    part = ids[start : start + batch]
                    yield _View(asked, ViewKeys(asked.kind, part, np.full(len(part), slot)))

    @property
    def _teacher_path(self) -> Path:
        return self._around.folder / "checkpoint" / "teacher.pt"

    @property
    def _where(self) -> torch.device | None:
        return self._around.device if self._config.bank_residency == "device" else None

    def _count_memory(self) -> None:
        if self._bank is not None:
            self._state.peak(bank=0 if self._config.bank_residency == "disk" else self._bank.nbytes)


def refreshes(config: Config, asks: Mapping[str, Asked], phase: Phase) -> bool:
    """Return whether stored views will be replaced within a phase."""
    others = any(asked.kind != "plain" for asked in asks.values())  # a plain image has no other views to offer
    return others and 0 < config.bank_refresh_epochs < phase.epochs


def bank_slots(keys: ViewKeys) -> np.ndarray:
    """Return the bank's one number per view of an image: kind and slot in one."""
    return keys.slots * len(KINDS) + KINDS.index(keys.kind)


def pool_sizes(config: Config, kinds: Iterable[str]) -> dict[str, int]:
    """Return how many slots an image has in the bank, by kind.

    Labeled images have sets of their own: they are few and every step shows them, so they can and should have more.
    """
    sets = {"large": config.bank_views, "small": config.bank_views, "plain": 1}
    return {kind: views_per_step(config.views, kind) * sets.get(kind, config.support_sets) for kind in kinds}
