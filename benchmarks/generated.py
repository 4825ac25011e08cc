"""Whether a generator's images are what was asked for, before training and after each task.

``python -m nncsl.benchmarks.generated RUN ...`` fits a support vector machine to all training images (at most 5,000) of
each run's data set and their labels, and tells how many of the images that the run's method made (kept in its
snapshots) it takes for the class that they were made for; and how varied they are: the mean distance between two of a
class, as a part of that between two real ones (0: always the same image). Real images are shown as a generator learns
them, in weak views. Labels that a run never saw are used here: this measures images, it is no method. Rows are added
to, or replaced in, benchmarks/results/generated.csv.
"""

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.metrics import pairwise_distances
from sklearn.svm import SVC

from nncsl import methods, networks
from nncsl.config import Config
from nncsl.data.catalog import open_data
from nncsl.data.rng import permutation, stream_key
from nncsl.data.sources import Images, Source
from nncsl.data.tasks import Task
from nncsl.data.views import as_pixels, make_views
from nncsl.record.folder import read_config
from nncsl.record.snapshots import read_snapshot

from .finished import Row, finished, name_of, put, read
from .provenance import current_commit

RESULTS = Path(__file__).parent / "results" / "generated.csv"
VIEWS = 4  # of each real image
KEYS = "run", "after task"
SHOWN = (*KEYS, "recognized", "by task", "variety", "real images recognized")
Samples = Mapping[int, np.ndarray]  # by class, uint8 [n, H, W, C]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m nncsl.benchmarks.generated", description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=finished, metavar="RUN", help="folders of finished runs")
    parser.add_argument("--out", type=Path, default=RESULTS, help="CSV file (default: %(default)s)")
    options = parser.parse_args(argv)
    for folder in options.runs:
        found = judge(folder)
        if not found:
            parser.error(f"{folder} has made no images: its method is {read_config(folder).method}")
        for row in found:
            put(options.out, row, *KEYS)
    show(read(options.out, *KEYS).values())
    return 0


def judge(folder: Path) -> list[Row]:
    """One run's rows: before training, and after each task."""
    config = read_config(folder)
    source, tasks = open_data(config)
    kept = [snapshot.samples for task in tasks if (snapshot := read_snapshot(folder, task.index)) is not None]
    if not any(kept):
        return []
    known = permutation(stream_key(0, "generated"), len(source.train_labels))[:5000]
    model = SVC().fit(vectors(weak_views(source.train, known, config)), np.tile(source.train_labels[known], VIEWS))
    members = {c: np.flatnonzero(source.test_labels == c) for c in range(source.num_classes)}
    real = {c: weak_views(source.test, ids, config) for c, ids in members.items()}
    rows = []
    for after, samples in enumerate([untrained(config, source, tasks[-1]), *kept]):
        right = {label: recognized(model, {label: images}) for label, images in samples.items()}
        met = tasks[:after] or tasks
        rows.append(
            {
                "run": name_of(folder),
                "after task": str(after),
                "recognized": f"{np.mean(list(right.values())):.1f}",
                "by task": " ".join(f"{np.mean([right[c] for c in task.classes]):.1f}" for task in met),
                "variety": f"{variety(samples) / variety({c: real[c] for c in samples}):.2f}",
                "images": str(sum(map(len, samples.values()))),
                "real images recognized": f"{recognized(model, real):.1f}",
                **{name: str(getattr(config, name)) for name in ("dataset", "method", "epochs", "seed")},
                "commit": current_commit(),
                "command": (folder / "command.txt").read_text().strip() if (folder / "command.txt").exists() else "",
            }
        )
    return rows


def weak_views(images: Images, ids: np.ndarray, config: Config) -> np.ndarray:
    """Return weak views of images, all first ones, then all second ones, ...: uint8 [VIEWS n, H, W, C]."""
    batch, slots = images.gather(np.tile(ids, VIEWS)), np.repeat(np.arange(VIEWS), len(ids))
    policy, keys = config.views, np.tile(ids, VIEWS)
    views = make_views(batch.pixels, keys, slots, policy=policy, kind="weak", seed=0, task=0, sizes=batch.sizes)
    return as_pixels(views, policy)


def untrained(config: Config, source: Source, task: Task) -> Samples:
    """Return what the method makes of all classes with its initial weights."""
    method = methods.build(config, source.num_classes)
    with networks.evaluating(method):
        return {label: as_pixels(images, config.views) for label, images in method.samples(task).items()}


def recognized(model: SVC, samples: Samples) -> float:
    """Return percent of the images that the model takes for their class."""
    right = [model.predict(vectors(images)) == label for label, images in samples.items()]
    return 100.0 * float(np.concatenate(right).mean())


def variety(samples: Samples) -> float:
    """Return the mean distance between two different images of a class."""
    distances = [pairwise_distances(vectors(images)) for images in samples.values()]
    return float(np.mean([each.sum() / (len(each) * (len(each) - 1)) for each in distances]))


def vectors(images: np.ndarray) -> np.ndarray:
    return images.reshape(len(images), -1) / 255


def show(rows: Iterable[Row]) -> None:
    table = Table(*SHOWN)
    for row in rows:
        table.add_row(*(row[column] for column in SHOWN))
    Console().print(table)


if __name__ == "__main__":
    raise SystemExit(main())
