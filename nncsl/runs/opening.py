"""Opening a run again: on which device, its method as the last checkpoint has it, and how good that is."""

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nncsl import evaluation, kernels, methods, metrics
from nncsl.config import Config
from nncsl.data.sources import Images, Source
from nncsl.data.tasks import Task
from nncsl.errors import ConfigError, UserError
from nncsl.methods.base import Method, unit_projections
from nncsl.record import checkpoint, earlier, introduction
from nncsl.record import folder as run_folder
from nncsl.record.state import RunState


def find_device(name: str) -> torch.device:
    """auto, cpu, cuda or cuda:N; CUDA then computes with deterministic algorithms, as resumed runs need them."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device={name!r}: expected auto, cpu or cuda") from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device={name!r}: expected auto, cpu or cuda")
    if device.type == "cuda" and device.index is None and int(os.environ.get("LOCAL_WORLD_SIZE", 1)) > 1:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))  # a GPU for each rank
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device={str(device)!r}: {torch.cuda.device_count()} CUDA devices were found; use --device cpu or auto, "
            "and at most one rank a device"
        )
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    return device


class Trained(NamedTuple):
    """A run as its last checkpoint has it, and the data it was trained on."""

    config: Config
    state: RunState
    source: Source
    tasks: tuple[Task, ...]
    method: Method
    device: torch.device


def reopen(folder: Path) -> Trained:
    """Return the method and state of the run in ``folder``."""
    config = run_folder.read_config(folder)
    path = folder / "checkpoint" / "state.pt"
    saved = checkpoint.load(path)
    source, tasks = earlier.open_run(folder, config)
    device = find_device(config.device)
    with checkpoint.understood(path):
        state = RunState.unpack(saved["state"])
        method = methods.rebuild(config, source.num_classes).to(device)
        methods.restore(method, saved, tasks, state)
    return Trained(config, state, source, tasks, method, device)


def evaluate(folder: Path) -> dict[str, Any]:
    """Return accuracies of a run's last checkpoint: by its method, and by soft nearest neighbours among the memory."""
    config, state, source, tasks, method, device = reopen(folder)
    trained = state.trained(len(tasks))
    if not trained:
        raise UserError(f"{folder} has not been trained yet: there is nothing to evaluate")
    scores, labels = evaluation.test_scores(method, source, config.views, device)
    outputs = scores.shape[1]
    shown, seen = tasks[:trained], torch.from_numpy(tasks[trained - 1].seen_mask(outputs))
    result: dict[str, Any] = {"tasks": trained, "linear": evaluation.accuracy_by_task(scores, labels, shown, seen)}
    ids = np.unique(np.concatenate([state.memory.ids, *(task.labeled for task in tasks[state.task : trained])]))
    if len(ids):

        def projections(images: Images, ids: np.ndarray) -> Tensor:
            return evaluation.answers(method, images, ids, config.views, device, unit_projections)

        supports, queries = projections(source.train, ids), projections(source.test, np.arange(len(source.test)))
        known = torch.from_numpy(source.train_labels[ids])
        probabilities = kernels.snn(queries, supports, known, num_classes=outputs, temperature=config.tau)
        result["nearest_neighbours"] = evaluation.accuracy_by_task(probabilities, labels, shown, seen)
    ways = [way for way in ("linear", "nearest_neighbours") if way in result]
    means = {way: metrics.average_accuracy([result[way]]) for way in ways}
    classes = len(tasks[trained - 1].seen)
    return result | {"mean": means, "classes": classes, "chance": introduction.chance(classes)}
