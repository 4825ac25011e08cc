"""What a run has learned, ready to be asked about images."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nncsl import evaluation, kernels, networks
from nncsl.data.images import padded
from nncsl.data.views import plain
from nncsl.errors import UserError
from nncsl.methods.base import Method, unit_projections
from nncsl.passes import inference_batch
from nncsl.use.pictures import Preparation, one_by_one
from nncsl.use.restored import Labeled, Restored, labeled_memory, restore

By = Literal["head", "neighbors"]
_SHOWN = 5  # neighbors that are named of each image


class Neighbor(NamedTuple):
    """A remembered image: its number in the training data, its class, and what part of the decision it made."""

    id: int
    name: str
    weight: float


@dataclass(frozen=True)
class Predictions:
    """Of n images: probabilities float64 [n, C], as ``classes`` are ordered; neighbors: nearest first, or None."""

    classes: tuple[str, ...]
    probabilities: np.ndarray
    neighbors: tuple[tuple[Neighbor, ...], ...] | None = None

    @property
    def names(self) -> list[str]:
        """The most probable class of each image."""
        return [self.classes[number] for number in self.probabilities.argmax(axis=1)]

    def top(self, count: int) -> list[list[tuple[str, float]]]:
        """Return the ``count`` most probable classes of each image with their probabilities, best first."""
        order = np.argsort(-self.probabilities, axis=1, kind="stable")[:, :count]
        return [
            [(self.classes[c], float(p[c])) for c in best] for p, best in zip(self.probabilities, order, strict=True)
        ]

    def __len__(self) -> int:
        return len(self.probabilities)


class Model:
    """A trained run. ``classes``: the names of those it has met, in the order of the probabilities."""

    def __init__(self, run: Restored) -> None:
        self.run = run
        self.classes = tuple(run.class_names[label] for label in run.seen)
        self.prepare = Preparation.of(run.config)

    @classmethod
    def open(cls, folder: str | Path, device: str = "auto") -> "Model":
        """Return the model of the run in ``folder``, as its last checkpoint has it; its data set is not needed."""
        return cls(restore(Path(folder), device))

    @property
    def batch(self) -> int:
        """How many images are judged at once."""
        return inference_batch(self.run.method.network, self.run.config.views.large.size)

    @property
    def decides_by(self) -> str:
        """What ``by="head"`` means for this method: the head, for most of them."""
        method = self.run.method
        plain = type(method).predict is Method.predict
        return method.decides_by or ("the head" if plain else "a prediction of its own")

    def predict(self, images: Any, *, by: By = "head") -> Predictions:
        """Return names and probabilities of images as evaluation would judge them.

        images: a path, a PIL image or a uint8 array ([H, W], [H, W, C], [n, H, W, C]; tensors have their channels
        first), or a list of these. by: "head" is the method's own prediction (see ``decides_by``); "neighbors" are the
        soft nearest neighbors among the remembered images, which are named.
        """
        return self.judge([self.prepare(image) for image in one_by_one(images)], by)

    def judge(self, prepared: Sequence[np.ndarray], by: By = "head") -> Predictions:
        """Return the predictions for images that ``prepare`` has made ready."""
        parts = [prepared[start : start + self.batch] for start in range(0, len(prepared), self.batch)]
        with networks.evaluating(self.run.method):
            found = [(self._by_neighbors if by == "neighbors" else self._by_method)(self._pixels(p)) for p in parts]
        probabilities = [part for part, _ in found] or [np.zeros((0, len(self.classes)))]
        named = tuple(row for _, rows in found for row in rows)
        return Predictions(self.classes, np.concatenate(probabilities), named if by == "neighbors" else None)

    def _pixels(self, prepared: Sequence[np.ndarray]) -> Tensor:
        sizes = np.array([image.shape[:2] for image in prepared], np.int64)
        batch = padded(prepared, sizes, self.prepare.channels)
        return plain(batch.pixels, self.run.config.views, sizes=batch.sizes, device=self.run.device)

    def _by_method(self, pixels: Tensor) -> tuple[np.ndarray, list[tuple[Neighbor, ...]]]:
        method = self.run.method
        scores = method.predict(pixels)[:, list(self.run.seen)].double().cpu()
        if bool(torch.isneginf(scores).all()):
            raise UserError(
                f"{self.run.folder}: {self.run.config.method} decides by {self.decides_by}, which it has only after "
                "its first task; train on, or use --by neighbors later"
            )
        return method.probabilities(scores).numpy(), []

    def _by_neighbors(self, pixels: Tensor) -> tuple[np.ndarray, list[tuple[Neighbor, ...]]]:
        run, (memory, supports) = self.run, self._supports
        queries = unit_projections(run.method, pixels).cpu()
        soft = partial(kernels.snn, queries, supports, temperature=run.config.tau)
        probabilities = soft(labels=torch.from_numpy(memory.labels), num_classes=len(run.class_names))
        # Each image as a class of its own: its part in the decision.
        parts = soft(labels=torch.arange(len(supports)), num_classes=len(supports))
        _, nearest = kernels.neighbors(queries, supports, min(_SHOWN, len(supports)))
        named = [
            tuple(
                Neighbor(int(memory.ids[row]), run.class_names[memory.labels[row]], float(weights[row])) for row in rows
            )
            for rows, weights in zip(nearest.tolist(), parts, strict=True)
        ]
        return probabilities[:, list(run.seen)].double().numpy(), named

    @cached_property
    def _supports(self) -> tuple[Labeled, Tensor]:
        """The labeled images of the memory and their unit projections [m, D], on the host."""
        memory, run = labeled_memory(self.run), self.run
        answers = evaluation.answers(
            run.method, memory.images, memory.rows, run.config.views, run.device, unit_projections
        )
        return memory, answers

    def export(self, target: str | Path) -> dict[str, Any]:
        """Write the method's own prediction to a .safetensors, .onnx or .pt2 file; return what it says of itself."""
        from nncsl.export import export

        return export(self, target)

    def remembered(self, ids: Sequence[int]) -> list[np.ndarray]:
        """Return the pixels of remembered images, uint8 [h, w, C] each."""
        memory, _ = self._supports
        return memory.images.gather(memory.rows[np.searchsorted(memory.ids, np.asarray(ids, np.int64))]).each()
