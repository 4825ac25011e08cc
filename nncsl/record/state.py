"""Where a run is: everything besides network, optimizer and bank that decides how it goes on."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from nncsl.replay import Memory


@dataclass
class RunState:
    """The next step to take, what is remembered, and what was measured so far.

    phase, begun: of the task, and whether its modules and optimizers exist; epoch: of the phase, epochs: of the task;
    remembered: tasks that the memory knows;
    generation, teacher: the bank's generation of this phase and its teacher's fingerprint; None before its sweep.
    steps: of an epoch, and memory_sizes: images in the memory, of every task that has begun;
    kept: the ledger of every task that has begun, in bytes by part, at the moment when it was fullest;
    extra: a method's own accuracies, after the phases that it wants measured;
    sums, counts: the running epoch's losses and how often each was added, so that it can be continued in its middle.
    """

    task: int = 0
    phase: int = 0
    begun: bool = False
    epoch: int = 0
    epochs: int = 0
    step: int = 0
    remembered: int = 0
    steps: list[int] = field(default_factory=list)
    memory_sizes: list[int] = field(default_factory=list)
    memory: Memory = field(default_factory=Memory)
    generation: int | None = None
    teacher: str | None = None
    sums: dict[str, torch.Tensor] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    untrained: list[float | None] = field(default_factory=list)
    accuracy_matrix: list[list[float | None]] = field(default_factory=list)
    seen_accuracy: list[float | None] = field(default_factory=list)
    ahead: list[float | None] = field(default_factory=list)
    extra: dict[str, list[float | None]] = field(default_factory=dict)
    seconds: float = 0.0
    images: int = 0
    peak_memory: dict[str, int] = field(default_factory=dict)
    kept: dict[int, dict[str, int]] = field(default_factory=dict)

    def pack(self) -> dict[str, Any]:
        """Tensors and plain values only, as a checkpoint takes them."""
        packed = {key: value for key, value in vars(self).items() if key != "memory"}
        arrays = (self.memory.ids, self.memory.labels, self.memory.unlabeled)
        return packed | {"memory": [torch.from_numpy(array.copy()) for array in arrays]}

    @classmethod
    def unpack(cls, packed: dict[str, Any]) -> "RunState":
        memory = Memory(*(np.asarray(tensor.numpy()) for tensor in packed["memory"]))
        sizes = [0] * len(packed.get("steps", []))  # 0.2 did not keep them, and had no method that asks
        return cls(**{"memory_sizes": sizes, **packed, "memory": memory})

    def add(self, name: str, value: torch.Tensor) -> None:
        """Add to the epoch's sums, where the value is: no waiting for a GPU."""
        value = value.detach().double()
        self.sums[name] = self.sums[name].to(value.device) + value if name in self.sums else value
        self.counts[name] = self.counts.get(name, 0) + 1

    def peak(self, **bytes_used: int) -> None:
        """Raises the recorded peaks."""
        for name, value in bytes_used.items():
            self.peak_memory[name] = max(self.peak_memory.get(name, 0), value)

    def keep(self, parts: dict[str, int]) -> None:
        """Take these parts for the task's ledger, unless there were more at an earlier moment of it."""
        self.kept[self.task] = max(parts, self.kept.get(self.task, {}), key=lambda each: sum(each.values()))

    def end_epoch(self) -> None:
        """Move on to the next epoch."""
        self.epoch, self.epochs, self.step = self.epoch + 1, self.epochs + 1, 0
        self.sums, self.counts = {}, {}

    def end_phase(self) -> None:
        """Move on to the next phase, which has not begun yet."""
        self.phase, self.begun, self.epoch = self.phase + 1, False, 0
        self.generation, self.teacher = None, None

    def end_task(self) -> None:
        """Move on to the next task."""
        self.task, self.phase, self.epochs = self.task + 1, 0, 0

    def trained(self, tasks: int) -> int:
        """Return how many of the run's tasks the network has seen images of, the one under way included."""
        return min(self.task + bool(self.epochs + self.step), tasks)

    def epoch_means(self) -> dict[str, float]:
        """Return the epoch's mean losses and accuracies, each over the steps that had it."""
        totals = torch.stack(list(self.sums.values())).tolist() if self.sums else []  # waits for a GPU once, not each
        return {name: total / self.counts[name] for name, total in zip(self.sums, totals, strict=True)}
