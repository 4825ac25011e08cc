"""Digits class by class, in data sets that know only some of them; and what is left when a run has ended."""

import json
from functools import cache

import numpy as np
import torch
from PIL import Image

from nncsl import config
from nncsl.config import build
from nncsl.data.images import ArrayImages
from nncsl.data.sources import SOURCES, Source, SourceOptions, open_source

EACH = 24  # images of a class, a part of them to test
QUICK = ("epochs=1", "warmup_epochs=0", "network.width=8", "network.blocks=[1]", "network.hidden=16", "bank_views=1")
QUICK += ("unlabeled_batch=19", "labels=3/class", "memory=16", "device=cpu")
OWN = {"gdumb": ("own.epochs=2",), "ordisco": ("own.channels=8",)}
TIMES = {"seconds", "images_per_second", "peak_memory", "dataset"}


def loaded(dataset, tasks, method="nncsl", *more):
    """A quick configuration."""
    values = (*QUICK, f"dataset={dataset}", f"tasks={tasks}", f"method={method}", *OWN.get(method, ()), *more)
    return config.load("digits", map(build.parse_assignment, values))


@cache
def pixels_of(label):
    """The first images of a class, uint8 [n, 8, 8, 1]."""
    digits = open_source("digits", SourceOptions())
    return digits.train.array[np.flatnonzero(digits.train_labels == label)[:EACH]]


def register(name, labels):
    """Add a data set of these digits to those that have a name."""

    def source(options):
        train, test = ([pixels_of(label)[part] for label in labels] for part in (slice(5, None), slice(5)))
        numbers = [np.repeat(np.arange(len(labels)), len(each[0])) for each in (train, test)]
        names = tuple(f"digit {label}" for label in labels)
        images = ArrayImages(np.concatenate(train)), numbers[0], ArrayImages(np.concatenate(test)), numbers[1]
        return Source(name, *images, names)

    SOURCES[name] = source


def register_all():
    """six is four and then two; three are further ones."""
    for name, labels in (("six", "012345"), ("four", "0123"), ("two", "45"), ("three", "678")):
        register(name, [int(label) for label in labels])


def write_folder(folder, labels):
    """The same as image files."""
    for label in labels:
        (folder / f"digit {label}").mkdir(parents=True)
        for number, image in enumerate(pixels_of(label)):
            Image.fromarray(image[:, :, 0]).convert("RGB").save(folder / f"digit {label}" / f"{number:02}.png")


def weights(folder):
    """All that was learned, to the bit."""
    saved = torch.load(folder / "checkpoint" / "state.pt", weights_only=True)["method"]
    return {name: value.numpy().tobytes() for name, value in saved.items()}


def measured(folder):
    """All that was written down of it, without times."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines.append(json.loads((folder / "summary.json").read_text()))
    return [{key: value for key, value in line.items() if key not in TIMES} for line in lines]


def remembered(folder):
    """Which images are remembered: the names of files say so."""
    return sorted(path.name for path in (folder / "memory").iterdir())
