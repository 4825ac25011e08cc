"""A run's method as its last checkpoint has it, from the run's folder alone: its data set may be far away."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from nncsl import methods, runs
from nncsl.config import Config
from nncsl.data.catalog import open_data
from nncsl.data.sources import Images
from nncsl.errors import UserError
from nncsl.methods.base import Method
from nncsl.record import checkpoint, remembered, snapshots
from nncsl.record import folder as run_folder
from nncsl.record.state import RunState


class Labeled(NamedTuple):
    """Remembered images with labels: ids and labels, int64 [m] each; rows: where they are in ``images``."""

    ids: np.ndarray
    labels: np.ndarray
    images: Images
    rows: np.ndarray


class Restored(NamedTuple):
    """class_names: of all classes; seen: the ones that the method has met, ascending."""

    folder: Path
    config: Config
    state: RunState
    method: Method
    device: torch.device
    class_names: tuple[str, ...]
    seen: tuple[int, ...]


def restore(folder: Path, device: str = "auto") -> Restored:
    """Return the method in eval mode, and what is known of its classes."""
    config = run_folder.read_config(folder)
    path = folder / "checkpoint" / "state.pt"
    saved, lines = checkpoint.load(path), run_folder.read_tasks(folder)["tasks"]
    with checkpoint.understood(path):
        state = RunState.unpack(saved["state"])
    tasks = run_folder.recorded_tasks(lines, sum(len(line["classes"]) for line in lines), np.zeros(0, np.int64))
    trained = state.trained(len(tasks))
    if not trained:
        raise UserError(f"{folder} has not been trained yet: it can't predict anything")
    where = runs.find_device(device)
    with checkpoint.understood(path):
        method = methods.rebuild(config, tasks[0].num_classes).to(where)
        methods.restore(method, saved, tasks, state)
    names = _class_names(folder, config, state, method)
    return Restored(folder, config, state, method.eval(), where, names, tuple(sorted(tasks[trained - 1].seen)))


def labeled_memory(run: Restored) -> Labeled:
    """Return the memory's labeled images; a run that kept no pixels takes them from its data set."""
    memory = run.state.memory
    if not len(memory.ids):
        raise UserError(
            f"{run.folder} remembers no labeled images (method {run.config.method}, memory={run.config.memory}): "
            "there are no neighbors to decide by; use --by head"
        )
    order = np.argsort(memory.ids)
    ids, labels = memory.ids[order], memory.labels[order]
    kept = remembered.read(run.folder, memory, run.method.keeps())
    if kept is None:
        return Labeled(ids, labels, open_data(run.config)[0].train, ids)
    return Labeled(ids, labels, kept.images, np.searchsorted(kept.ids, ids))


def _class_names(folder: Path, config: Config, state: RunState, method: Method) -> tuple[str, ...]:
    """Of the run itself; older runs have them in their snapshots or, in their first task, in the data set alone."""
    kept = remembered.read(folder, state.memory, method.keeps())
    if kept is not None:
        return kept.class_names
    snapshot = snapshots.read_snapshot(folder, state.task - 1)
    return snapshot.class_names if snapshot else open_data(config)[0].class_names
