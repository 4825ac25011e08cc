"""What distillation needs of a bank: rows of finished runs, kept in fewer bytes, and what L_NND makes of them.

    python -m nncsl.benchmarks.bank_smaller RUN ... [--batches 8] [--out benchmarks/results]

The bank of a run's last task (bank_codec=fp32) is kept in every way of `bank_ways`. Batches are drawn as the task's
steps draw them, from the stored views. The student is the run's own: the projections that its final network has for
the very pixels that the stored rows were made of. Reported of each way: bytes of a view (without its key), how often
the old class that the old network holds most likely stays the same, the mean and the largest error of a probability,
and the relative error of L_NND's gradient with respect to the student's queries. Writes bank-smaller.csv and
bank-smaller.json.
"""

from __future__ import annotations

import argparse
import csv
import json
import shlex
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from nncsl import kernels, networks, objectives, runs
from nncsl.batches import Draws, Moment, Pool, Renderer
from nncsl.data.policy import KINDS
from nncsl.data.tasks import Stream
from nncsl.featurebank import FeatureBank
from nncsl.methods.base import unit_projections
from nncsl.replay import Memory
from nncsl.runs.opening import Trained
from nncsl.teachers.bank import bank_slots

from .bank_ways import WAYS, Rows
from .provenance import current_commit, processor

# Of the paper: unlabeled images of a task and remembered ones; views of an image in a step and sets of the presets.
SIZES = [(unlabeled, memory) for unlabeled in (5000, 50_000 // 20) for memory in (500, 5120)]
VIEWS = {"unlabeled": 4 * 4, "memory": 2 * 16}
COLUMNS = (
    *("run", "way", "bytes per view", "same top class", "mean error of a probability"),
    *("largest error of a probability", "error of the gradient"),
)


class Batch(NamedTuple):
    """A step's queries and old supports: places of their rows in the bank, the student's projections, old labels."""

    queries: np.ndarray
    supports: np.ndarray
    student_queries: Tensor
    student_supports: Tensor
    labels: Tensor


class Scene(NamedTuple):
    rows: Rows
    batches: list[Batch]
    options: dict[str, Any]  # of soft nearest neighbors


def look(folder: Path, count: int) -> Scene:
    """Return a finished run's rows and ``count`` batches of its last task."""
    trained = runs.opening.reopen(folder)
    with FeatureBank.open(folder / "bank", "r") as bank:
        if bank.codec != "fp32" or not len(bank):
            raise SystemExit(
                f"{folder}: its bank has {len(bank)} rows in {bank.codec}, expected some in fp32; "
                "train it with --set bank_codec=fp32"
            )
        stored = bank.keys()
        ids, slots = stored[0].numpy(), stored[1].numpy()
        features, index = bank.read(ids, slots), int(bank.manifest.task)
    kinds = slots % len(KINDS)
    support = kinds == KINDS.index("support")
    if not support.any() or support.all():
        raise SystemExit(f"{folder}: its bank lacks views of memory images or of unlabeled ones; method nncsl has both")
    task, source = trained.tasks[index], trained.source
    old = np.unique(ids[support])
    memory = Memory(old, source.train_labels[old], np.setdiff1d(ids[~support], task.unlabeled))
    pool = _pool(ids, slots // len(KINDS), kinds)
    place = {key: row for row, key in enumerate(zip(ids.tolist(), slots.tolist(), strict=True))}
    found = _batches(trained, index, memory, pool, place, count)
    classes = np.where(support, source.train_labels[ids], -1)
    options = {
        "num_classes": len(task.old),
        "temperature": trained.config.tau,
        "smoothing": trained.config.smoothing,
        "backend": "reference",
    }
    return Scene(Rows(normalize(features, dim=1), ids, classes), found, options)


def _pool(ids: np.ndarray, slots: np.ndarray, kinds: np.ndarray) -> Pool:
    """The views that the bank has, as steps ask for them."""
    sizes, images, replaced = {}, {}, 0
    for kind in np.unique(kinds):
        ours = kinds == kind
        sizes[KINDS[kind]] = len(np.unique(slots[ours]))
        images[KINDS[kind]] = np.unique(ids[ours])
        replaced = int(slots[ours].min()) // sizes[KINDS[kind]]
    return Pool(sizes, images, replaced)


def _batches(
    trained: Trained, index: int, memory: Memory, pool: Pool, place: dict[tuple[int, int], int], count: int
) -> list[Batch]:
    config, stream = trained.config, Stream(trained.source, trained.tasks)
    task = stream.begin(index, memory.ids, memory.unlabeled)
    draws = Draws(task, memory, config)
    render = Renderer(stream, config.views, seed=config.seed, task=index, device=trained.device)
    found = []
    for number in range(count):
        now = Moment(0, *divmod(number, draws.steps_per_epoch), number, pool)
        supports = draws.supports(now)
        supports = supports.rows(supports.old)
        assert supports.labels is not None
        keys = [*(group.keys for group in draws.unlabeled_views(now).values()), supports.keys]
        with networks.evaluating(trained.method):
            *seen, others = (unit_projections(trained.method, render(each)).float().cpu() for each in keys)
        rows = [
            np.array([place[key] for key in zip(each.ids.tolist(), bank_slots(each).tolist(), strict=True)])
            for each in keys
        ]
        labels = torch.from_numpy(objectives.places(task.old)[supports.labels.numpy()])
        found.append(Batch(np.concatenate(rows[:-1]), rows[-1], torch.cat(seen), others, labels))
    return found


def judge(scene: Scene, features: Tensor) -> tuple[float, float, float, float]:
    """Return same top class, mean and largest error of a probability, relative error of the gradient.

    features [n, D]: what the old network's rows have become.
    """
    exact = [_answers(batch, scene.rows.features, scene.options) for batch in scene.batches]
    found = [_answers(batch, features, scene.options) for batch in scene.batches]
    (p, g), (q, h) = (map(torch.cat, zip(*each, strict=True)) for each in (exact, found))
    same = (p.argmax(1) == q.argmax(1)).double().mean()
    return (
        same.item(),
        (p - q).abs().mean().item(),
        (p - q).abs().max().item(),
        ((g - h).norm() / g.norm()).item(),
    )


def _answers(batch: Batch, features: Tensor, options: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """The old network's probabilities [N, C], and the gradient of L_NND in the student's queries [N, D]."""
    teacher = features[torch.from_numpy(batch.queries)].double(), features[torch.from_numpy(batch.supports)].double()
    queries, supports = batch.student_queries.double().requires_grad_(), batch.student_supports.double()
    kernels.nnd_loss(queries, supports, *teacher, batch.labels, **options).backward()
    assert queries.grad is not None
    return kernels.snn(*teacher, batch.labels, **options), queries.grad


def shares() -> list[dict[str, float]]:
    """Return which part of a bank at the paper's sizes are rows of memory images: all that class means could save."""
    found = []
    for unlabeled, memory in SIZES:
        ours, others = memory * VIEWS["memory"], unlabeled * VIEWS["unlabeled"]
        found.append(
            {
                "unlabeled images": unlabeled,
                "memory images": memory,
                "rows": ours + others,
                "share of memory images": round(ours / (ours + others), 3),
                "fp16 MB": round(256e-6 * (ours + others), 1),
                "int4 MB": round(66e-6 * (ours + others), 1),
                "int4 MB with class means": round(66e-6 * others, 1),
            }
        )
    return found


def _command(folder: Path) -> str:
    """What made a run, without the places where it lay and its data lie."""
    words = shlex.split((folder / "command.txt").read_text())
    places = {n for n, word in enumerate(words) if word in ("--out", "--data-dir")}
    return shlex.join(word for n, word in enumerate(words) if not {n, n - 1} & places)


def main(argv: list[str] | None = None) -> int:
    """Measure all ways on all runs."""
    parser = argparse.ArgumentParser(
        prog="python -m nncsl.benchmarks.bank_smaller", description=__doc__.splitlines()[0]
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="finished runs with bank_codec=fp32")
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args(argv)
    commit = current_commit()
    table: list[tuple[Any, ...]] = []
    print("| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|")
    for folder in options.runs:
        scene = look(folder, options.batches)
        for name, way in WAYS.items():
            kept = way(scene.rows)
            table.append((folder.name, name, round(kept.row_bytes, 1), *judge(scene, kept.features)))
            print("| " + " | ".join(f"{x:.4g}" if isinstance(x, float) else x for x in table[-1]) + " |")
    names = " ".join(folder.name for folder in options.runs)
    about = {
        "command": f"python -m nncsl.benchmarks.bank_smaller {names} --batches {options.batches}",
        "runs": {folder.name: _command(folder) for folder in options.runs},
        "commit": commit,
        "machine": processor(),
        "at the paper's sizes, without keys": shares(),
    }
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "bank-smaller.csv").open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *table])
    (options.out / "bank-smaller.json").write_text(json.dumps(about, indent=1) + "\n")
    print(json.dumps(about["at the paper's sizes, without keys"], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
