"""Whether a generator's images are what was asked for, before training and after each task.

``python -m nncsl.benchmarks.generated RUN ...`` fits a support vector machine to all training images (at most 5,000) of
each run's data set and their labels, and tells how many of the images that the run's method made (kept in its
snapshots) it takes for the class that they were made for; and how varied they are: the mean distance between two of a
class, as a part of that between two real ones (0: always the same image). Real images are shown as a generator learns
them, in weak views. Labels that a run never saw are used here: this measures images, it is no method. Rows are added
to, or replaced in, benchmarks/results/generated.csv.
"""

import argparse
import csv
from collections.abc import Mapping
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
from nncsl.files import write_table
from nncsl.record.folder import read_config
from nncsl.record.snapshots import read_snapshot

from .provenance import current_commit

RESULTS = Path(__file__).parent / "results" / "generated.csv"
VIEWS = 4  # of each real image
SHOWN = ("run", "after task", "recognized", "by task", "variety", "real images recognized")
Row = dict[str, str]
Samples = Mapping[int, np.ndarray]  # by class, uint8 [n, H, W, C]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m nncsl.benchmarks.generated", description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folders of finished runs")
    parser.add_argument("--out", type=Path, default=RESULTS, help="CSV file (default: %(default)s)")
    options = parser.parse_args(argv)
    rows = read(options.out)
    for folder in options.runs:
        if not (folder / "summary.json").exists():
            parser.error(f"{folder} is not a finished run: summary.json is not in it")
        found = judge(folder)
        if not found:
            parser.error(f"{folder} has made no images: its method is {read_config(folder).method}")
        rows |= {(row["run"], row["after task"]): row for row in found}
        write_table(options.out, [rows[key] for key in sorted(rows)], list(found[0]))
    show(rows)
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
                "run": "/".join(folder.resolve().parts[-2:]),
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


def read(path: Path) -> dict[tuple[str, str], Row]:
    """Rows by run and task; none where there is no file yet."""
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        return {(row["run"], row["after task"]): row for row in csv.DictReader(file)}


def show(rows: dict[tuple[str, str], Row]) -> None:
    table = Table(*SHOWN)
    for key in sorted(rows):
        table.add_row(*(rows[key][column] for column in SHOWN))
    Console().print(table)


if __name__ == "__main__":
    raise SystemExit(main())
