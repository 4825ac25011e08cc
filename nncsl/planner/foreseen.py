"""The ledger of a run before it begins: the tasks pass without a step, in shapes alone.

Which images will be remembered, what the old network will be asked and which modules a method makes is known from the
tasks and the seed. It is exact where all images have one size, or where the memory is drawn at random; of images of
many sizes that a network chooses, the largest are counted. A method's second memory may share images with the first,
which is not foreseen.
"""

from dataclasses import replace

import numpy as np
import torch

from nncsl import methods, replay
from nncsl.accounting import image_sizes, state_bytes
from nncsl.batches import Draws
from nncsl.config import Config
from nncsl.data.images import Images
from nncsl.data.tasks import Task
from nncsl.featurebank.codecs import make_codec
from nncsl.methods.base import Method, Phase
from nncsl.planner import imagined
from nncsl.record import ledger
from nncsl.record.ledger import Parts
from nncsl.replay import Memory, Ranking
from nncsl.teachers.bank import refreshes

SHAPES = torch.device("meta")  # tensors without contents


class Foresight:
    """Ledgers of runs on the same tasks, for any settings that leave the tasks as they are."""

    def __init__(self, images: Images, tasks: tuple[Task, ...], config: Config) -> None:
        self.tasks = tasks
        ids = [task.labeled for task in tasks] + [task.unlabeled for task in tasks if config.unlabeled_memory]
        known = np.unique(np.concatenate(ids))
        self._bytes = np.zeros(len(images), np.int64)
        self._bytes[known] = image_sizes(images, known)
        # Which images are remembered: an image that is remembered with and without its label counts once.
        self._matters = len(np.unique(self._bytes[known])) > 1 or config.unlabeled_memory > 0
        self._answers: dict[tuple[int, str], int] = {}

    @property
    def num_classes(self) -> int:
        return self.tasks[0].num_classes

    def peak(self, config: Config) -> Parts:
        """Return the parts of the task in which most will be kept, with their sum."""
        return ledger.fullest(self.ledgers(config))

    def ledgers(self, config: Config) -> list[Parts]:
        """Return what will be kept in each task, at the moment when that is most: as the loop will record it."""
        with SHAPES:
            method = methods.build(config, self.num_classes)
        memory, met = Memory(), 0
        grown = method.will_keep(0, 0)
        found = []
        for task in self.tasks:
            moments, answers = [], Parts()
            if method.remembers_first:
                memory = self._remembered(memory, task, method)
            steps = Draws(task, memory, config).steps_per_epoch
            task = replace(task, steps=steps, remembered=len(memory.ids))
            for number, phase in enumerate(method.phases(task)):
                if type(method).begin is not Method.begin:  # that makes no modules
                    with SHAPES:
                        methods.begin(method, number, phase, task)
                answers = self._teacher(method, phase, task, memory, grown[1])
                moments.append(self._parts(method, memory, answers, *grown))
            if method.uses_memory and not method.remembers_first:
                memory = self._remembered(memory, task, method)
            met += len(np.union1d(task.labeled, task.unlabeled))
            grown = method.will_keep(len(memory.ids), met)
            moments.append(self._parts(method, memory, answers, *grown))
            found.append(max(moments, key=ledger.total))
        return found

    def _teacher(self, method: Method, phase: Phase, task: Task, memory: Memory, grown: int) -> Parts:
        """What the configured teacher will keep for a phase; grown: bytes of buffers that the method has by then."""
        config = method.config
        asks = {name: asked for name, asked in method.asks(phase, task, memory).items() if len(asked.ids)}
        if not asks or config.teacher_mode == "none":
            return {}
        weights = state_bytes(method) + grown
        if config.teacher_mode == "model":
            return {"teacher": weights}
        asked = list(asks.values())
        place = (task.index, phase.name)
        if place not in self._answers:  # their length is the method's affair: no setting of a bank changes it
            with SHAPES:
                self._answers[place] = imagined.answer_size(method, asked, SHAPES)
        bank = make_codec(config.bank_codec, self._answers[place]).nbytes(imagined.rows(config, asked))
        return {"bank": bank, "teacher": weights if refreshes(config, asks, phase) else 0}

    def _remembered(self, memory: Memory, task: Task, method: Method) -> Memory:
        config = method.config
        drawn = config.memory_selection == "random" and self._matters
        rank = replay.random_ranking(config.seed) if drawn else self._largest_first()
        return replay.after_task(memory, task, config, rank, everything=method.remembers_all)

    def _largest_first(self) -> Ranking:
        return lambda label, ids: ids[np.argsort(-self._bytes[ids], kind="stable")]

    def _parts(self, method: Method, memory: Memory, answers: Parts, images: int, grown: int) -> Parts:
        unlabeled = np.setdiff1d(memory.unlabeled, memory.ids)
        parts = {
            "memory": int(self._bytes[memory.ids].sum()),
            "unlabeled_memory": int(self._bytes[unlabeled].sum()),
            "labels": ledger.label_bytes(memory),
            **answers,
            "own.images": images * int(self._bytes.max()),
            "own": sum(ledger.own_state(method).values()) + grown,
        }
        return {name: size for name, size in parts.items() if size}
