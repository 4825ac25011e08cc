"""The paper's numbers, all of its tables; its average accuracies for runs whose setting they belong to."""

import csv
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from nncsl.data.labels import LabelBudget
from nncsl.errors import UserError

# Tables of average accuracies whose other settings are the presets'; the first one that has a setting is taken.
_PROTOCOL = ("main", "imagenet100", "ablation", "buffer")
_IMAGES_PER_CLASS = {"cifar10": 5000, "cifar100": 500, "imagenet100": 1300}


def published(config: Mapping[str, Any]) -> tuple[float, float | None] | None:
    """(average accuracy, its deviation if printed) for the same data, tasks, labels, memory and method; or None."""
    if config["dataset"] not in _IMAGES_PER_CLASS or not _plain(config):
        return None
    for row in rows():
        if row["table"] not in _PROTOCOL or row["value"] == "collapse":
            continue
        same = all(row[key] == str(config[key]) for key in ("dataset", "tasks", "method"))
        memory = row["memory"] in ("", str(config.get("memory")))  # the paper names none where the method uses none
        if same and memory and _labels(row["labels"], row) == _labels(str(config.get("labels")), row):
            return float(row["value"]), float(row["std"]) if row["std"] else None
    return None


def _plain(config: Mapping[str, Any]) -> bool:
    """Not one of this package's own variations, and with the teacher that the paper's method has."""
    taught = config.get("teacher_mode") != "none" and config.get("distillation") == "nnd"
    even = len(set(config.get("task_sizes") or ())) <= 1
    return even and not config.get("unlabeled_memory") and (taught or config["method"] != "nncsl")


def _labels(text: str, row: Mapping[str, str]) -> int | None:
    """Labeled images per class, however they were asked for."""
    try:
        budget = LabelBudget.parse(text)
    except UserError:
        return None
    if budget.fraction is not None:
        return round(budget.fraction * _IMAGES_PER_CLASS[row["dataset"]])
    return budget.per_class


@cache
def rows() -> list[dict[str, str]]:
    """Return every number of the paper's tables: table, setting, metric, value and, if printed, std."""
    return list(csv.DictReader((resources.files("nncsl.report") / "paper.csv").read_text().splitlines()))
