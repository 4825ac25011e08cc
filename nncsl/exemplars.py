"""Which images the memory prefers: at random, or those that together stand for their class (herding)."""

import tempfile
from pathlib import Path

import numpy as np
import torch

from nncsl import evaluation, teachers
from nncsl.config import Config
from nncsl.data.tasks import Stream, Task
from nncsl.featurebank import FeatureBank
from nncsl.memory import Memory, Ranking, random_ranking
from nncsl.networks import Network


def ranking(
    config: Config,
    network: Network,
    stream: Stream,
    task: Task,
    memory: Memory,
    folder: Path,
    device: torch.device,
) -> Ranking:
    """The configured order of preference among this task's labeled images and the memory's."""
    if config.memory_selection == "random" or config.memory == 0:
        return random_ranking(config.seed)
    ids = np.concatenate([task.labeled, memory.ids])
    labels = stream.labels(ids)
    features = evaluation.answers(network, stream, ids, config.views, device, teachers.unit_projections)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        bank = FeatureBank.create(Path(temporary) / "bank", features.shape[1], "fp32")
        with bank:
            bank.write(ids, np.zeros(len(ids), np.int64), features, labels=labels, role="support")
            bank.commit()
            chosen = bank.index().herding(len(ids))
    order = {int(image): place for place, image in enumerate(chosen.ids)}

    def rank(label: int, candidates: np.ndarray) -> np.ndarray:
        return np.array(sorted(candidates, key=lambda image: order[int(image)]), dtype=np.int64)

    return rank
