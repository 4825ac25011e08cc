"""The teacher's life: made at a task's boundary, asked for fresh views inside it, kept while a checkpoint needs it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nncsl import networks, teachers
from nncsl.batches import Pool
from nncsl.config import Config
from nncsl.data.sources import Source
from nncsl.data.tasks import Task
from nncsl.featurebank import FeatureBank, fingerprint
from nncsl.networks import Network
from nncsl.record import checkpoint
from nncsl.record.state import RunState
from nncsl.terminal import Interruption, Reporter


class Teaching:
    """Gives the loop its teacher and its view pool; the only place that knows of teacher modes."""

    def __init__(
        self,
        config: Config,
        source: Source,
        network: Network,
        folder: Path,
        device: torch.device,
        reporter: Reporter,
        interruption: Interruption,
        *,
        distills: bool,
    ) -> None:
        self._config, self._source, self._network = config, source, network
        self._folder, self._device = folder, device
        self._reporter, self._interruption = reporter, interruption
        self._mode = config.teacher_mode if distills else "none"
        self._answer = self._in_precision(
            teachers.head_logits if config.distillation == "kd" else teachers.unit_projections
        )
        self._bank: FeatureBank | None = None
        self._copy: teachers.ModelTeacher | None = None

    def begin(
        self, state: RunState, task: Task, render: teachers.Render, saved: dict[str, Any] | None
    ) -> teachers.Teacher:
        """The task's teacher. The network still is the teacher here, unless a checkpoint says that it has moved on."""
        self._task, self._render, self._state = task, render, state
        self._copy = None
        # The first task has no teacher; and without a memory there are no old supports for NND to compare with.
        pointless = self._config.distillation == "nnd" and not len(state.memory.ids)
        if self._mode == "none" or task.index == 0 or pointless:
            return teachers.NoTeacher()
        if self._mode == "model":
            self._copy = teachers.ModelTeacher(self._network, self._answer, self._config.micro_batch)
            if saved is not None and "teacher" in saved:
                self._copy.network.load_state_dict(saved["teacher"])
            state.peak(teacher=networks.nbytes(self._copy.network))
            return self._copy
        if state.generation is not None and self._bank is None:
            self._bank = self._reopen(state.generation, str(state.teacher))
        if state.generation is None:
            state.teacher = fingerprint(self._network.state_dict())
            if self._config.refreshes_bank:
                checkpoint.save(self._teacher_path, {"network": self._network.state_dict()})
            self._sweep(self._pool(0))
        return self._bank_teacher()

    def pool(self, epoch: int, teacher: teachers.Teacher) -> tuple[Pool, teachers.Teacher]:
        """The view slots of this epoch and who answers for them; sweeps a fresh pool where one is due."""
        if not isinstance(teacher, teachers.BankTeacher):
            return Pool(), teacher
        pool = self._pool(epoch)
        every = self._config.bank_refresh_epochs
        if every and epoch and epoch % every == 0 and self._state.step == 0:
            self._refresh(pool)
            return pool, self._bank_teacher()
        return pool, teacher

    def contents(self) -> dict[str, Any]:
        """What a checkpoint has to hold for the teacher: its weights, where they are in use."""
        return {"teacher": self._copy.network.state_dict()} if self._copy is not None else {}

    def after_save(self) -> None:
        """A checkpoint refers to the served generation now: nothing needs an older one."""
        if self._bank is not None:
            for generation in self._bank.generations:
                if generation.generation != self._bank.generation:
                    self._bank.evict(generation=generation.generation)

    def close(self) -> None:
        if self._bank is not None:
            self._bank.close()

    def _in_precision(self, answer: teachers.Answer) -> teachers.Answer:
        """The teacher computes in the student's precision, also in a sweep: it is the same network."""

        def answered(network: Network, images: Tensor) -> Tensor:
            with networks.autocast(self._config.precision, self._device):
                return answer(network, images)

        return answered

    @property
    def _teacher_path(self) -> Path:
        return self._folder / "checkpoint" / "teacher.pt"

    def _pool(self, epoch: int) -> Pool:
        config, every = self._config, self._config.bank_refresh_epochs
        return Pool(config.bank_views, config.support_sets, replaced=epoch // every if every else 0)

    def _refresh(self, pool: Pool) -> None:
        """Sweeps with the teacher's weights while the student's rest on disk: even now there is one network only."""
        student = self._teacher_path.with_name("student.pt")
        checkpoint.save(student, {"network": self._network.state_dict()})
        self._network.load_state_dict(checkpoint.load(self._teacher_path)["network"])
        try:
            self._sweep(pool)
        finally:
            self._network.load_state_dict(checkpoint.load(student)["network"])
        student.unlink()

    def _sweep(self, pool: Pool) -> None:
        """Fills a new generation of the bank with the network's answers on the pool's views."""
        facts: dict[str, Any] = {
            "teacher": self._state.teacher,
            "task": self._task.index,
            "views": {
                "policy": self._config.views.fingerprint(),
                "seed": self._config.seed,
                "sets": pool.sets,
                "support_sets": pool.support_sets,
            },
            "dataset": self._source.fingerprint,
        }
        if self._bank is None:
            kd = self._config.distillation == "kd"
            dim = self._source.num_classes if kd else self._config.network.projection
            self._bank = FeatureBank.create(
                *(self._folder / "bank", dim, self._config.bank_codec),
                overwrite=True,
                normalized=not kd,
                residency=self._config.bank_residency,
                device=self._where,
                **facts,
            )
        else:
            self._bank.begin_generation(**facts)
        teachers.sweep(
            *(self._bank, self._network, self._answer, self._render, self._config.views),
            unlabeled=np.concatenate([self._task.unlabeled, self._state.memory.unlabeled]),
            labeled=self._task.labeled,
            replay=self._state.memory.ids,
            pool=pool,
            track=self._track,
        )
        self._state.generation = self._bank.generation

    @property
    def _where(self) -> torch.device | None:
        return self._device if self._config.bank_residency == "device" else None

    def _reopen(self, generation: int, teacher: str) -> FeatureBank:
        return FeatureBank.open(
            *(self._folder / "bank", "a"),
            generation=generation,
            teacher=teacher,
            residency=self._config.bank_residency,
            device=self._where,
        )

    def _bank_teacher(self) -> teachers.BankTeacher:
        assert self._bank is not None
        on_disk = self._config.bank_residency == "disk"
        self._state.peak(bank=0 if on_disk else self._bank.nbytes)
        return teachers.BankTeacher(self._bank, self._device)

    def _track(self, items: list[Any]) -> Iterator[Any]:
        return self._interruption.guard(self._reporter.track(items, "teacher's features"))
