"""Images that stay with a label that was guessed for them, beside the memory, whose labels are true."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from nncsl import networks, replay
from nncsl.accounting import row_bytes
from nncsl.batches import Render, plain_keys
from nncsl.methods.base import Method
from nncsl.networks import Network
from nncsl.passes import inference_batch
from nncsl.replay import Memory


class KeepsGuesses(Method):
    """A method with images of earlier tasks, balanced over their guessed classes, and the labels that they had then."""

    kept: Tensor  # int64 [m], in order
    kept_labels: Tensor  # int64 [m]

    def forget_guesses(self) -> None:
        """Keep nothing."""
        for name in ("kept", "kept_labels"):
            self.register_buffer(name, torch.zeros(0, dtype=torch.int64))

    def keep_guesses(self, ids: np.ndarray, labels: np.ndarray, seen: Sequence[int], size: int) -> None:
        """Take in images [n] with guessed labels [n]; altogether ``size`` images of the classes seen stay.

        An image's place in the order of its class never changes: what is kept of a class is a sample of all images
        that were ever taken for it, as a reservoir's is.
        """
        before = Memory(self.keeps(), self.kept_labels.cpu().numpy())
        after = replay.update(before, ids, labels, sorted(seen), size, replay.random_ranking(self.config.seed))
        order, device = np.argsort(after.ids), self.kept.device
        self.kept, self.kept_labels = (torch.tensor(rows[order], device=device) for rows in (after.ids, after.labels))

    def keeps(self) -> np.ndarray:
        return self.on_host("kept").numpy()

    def guesses_bytes(self, images: int) -> int:
        """Return how many bytes so many of them take in buffers; their pixels are counted with the memory's."""
        return images * (row_bytes(self.kept) + row_bytes(self.kept_labels))


def guess(
    network: Network, ids: np.ndarray, classes: Sequence[int], size: int, render: Render
) -> tuple[Tensor, Tensor]:
    """Return what plain images [n] are taken for among some classes, and how surely: :func:`best_class`, on the host.

    size: of a large view, by which a batch is chosen.
    """
    labels, sure = torch.zeros(len(ids), dtype=torch.int64), torch.zeros(len(ids))
    batch = inference_batch(network, size)
    for start in range(0, len(ids), batch):
        rows = slice(start, start + batch)
        labels[rows], sure[rows] = best_class(networks.head_logits(network, render(plain_keys(ids[rows]))), classes)
    return labels, sure


def best_class(logits: Tensor, classes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return which of some classes has the highest of logits [n, C], int64 [n], and its probability among them [n]."""
    among = torch.tensor(classes, device=logits.device)
    chosen = logits[:, among]
    return among[chosen.argmax(dim=1)], chosen.float().softmax(dim=1).amax(dim=1)
