"""A run's network again, as its last checkpoint has it, and how good it is."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from nncsl import engine, evaluation, kernels, teachers
from nncsl.config import Config
from nncsl.data.catalog import open_data
from nncsl.data.sources import Source
from nncsl.data.tasks import Task
from nncsl.errors import UserError
from nncsl.networks import Network
from nncsl.record import checkpoint
from nncsl.record import folder as run_folder
from nncsl.record.state import RunState
from nncsl.run import find_device


class Trained(NamedTuple):
    """A run as its last checkpoint has it, and the data it was trained on."""

    config: Config
    state: RunState
    source: Source
    tasks: tuple[Task, ...]
    network: Network
    device: torch.device


def reopen(folder: Path) -> Trained:
    """The network and state of the run in ``folder``."""
    config = run_folder.read_config(folder)
    saved = checkpoint.load(folder / "checkpoint" / "state.pt")
    source, tasks = open_data(config)
    device = find_device(config.device)
    network = engine.build_network(config, source).to(device)
    network.load_state_dict(saved["network"])
    return Trained(config, RunState.unpack(saved["state"]), source, tasks, network, device)


def evaluate(folder: Path) -> dict[str, Any]:
    """Accuracies of a run's last checkpoint: by the linear head, and by soft nearest neighbours among the memory."""
    config, state, source, tasks, network, device = reopen(folder)
    trained = min(state.task + bool(state.epoch + state.step), len(tasks))
    if not trained:
        raise UserError(f"{folder} has not been trained yet: there is nothing to evaluate")
    seen = torch.zeros(source.num_classes, dtype=torch.bool)
    seen[[c for task in tasks[:trained] for c in task.classes]] = True
    logits, labels = evaluation.test_logits(network, source, config.views, device)
    shown = tasks[:trained]
    result: dict[str, Any] = {"tasks": trained, "linear": evaluation.accuracy_by_task(logits, labels, shown, seen)}
    ids = np.concatenate([state.memory.ids, *(task.labeled for task in tasks[state.task : trained])])
    if len(ids):
        arguments = (config.views, device, teachers.unit_projections)
        supports = evaluation.answers(network, source.train, ids, *arguments)
        queries = evaluation.answers(network, source.test, np.arange(len(source.test)), *arguments)
        known = torch.from_numpy(source.train_labels[ids])
        probabilities = kernels.snn(queries, supports, known, num_classes=source.num_classes, temperature=config.tau)
        result["nearest_neighbours"] = evaluation.accuracy_by_task(probabilities, labels, shown, seen)
    return result
