"""How many labels there are, and on which images: a pure function of the seed, the same on every machine."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nncsl.data.rng import permutation, stream_key
from nncsl.errors import ConfigError, UserError, shown
from nncsl.files import check_path, read_text

_FORMS = (
    '"0.8%" (of each class), "4/class", a list of such, one per task ("100%,5%"), or the path of a file with one '
    "training-image index per line"
)


@dataclass(frozen=True)
class LabelBudget:
    """A fraction of each class, a number per class, a published list of indices, or one of the first two for each task.

    Exactly one is set.
    """

    fraction: float | None = None
    per_class: int | None = None
    file: Path | None = None
    by_task: tuple["LabelBudget", ...] = ()

    @classmethod
    def parse(cls, text: str) -> "LabelBudget":
        """Reads ``"0.8%"``, ``"4/class"``, a list of such, or the path of an index file."""
        if "," in text and not _is_file(text):
            parts = tuple(cls.parse(part) for part in text.split(","))
            if any(part.file for part in parts):
                raise ConfigError(f"labels={text!r}: expected only percentages and numbers per class in a list")
            return cls(by_task=parts)
        if match := re.fullmatch(r"\s*([0-9]{1,9}(?:\.[0-9]{0,15})?|\.[0-9]{1,15})\s*%\s*", text):
            percent = float(match[1])
            if not 0 < percent <= 100:
                raise ConfigError(f"labels={text!r}: expected a percentage above 0 and up to 100")
            return cls(fraction=percent / 100)
        if match := re.fullmatch(r"\s*([0-9]{1,9})\s*/\s*class\s*", text):
            if int(match[1]) < 1:
                raise ConfigError(f"labels={text!r}: expected at least one label per class")
            return cls(per_class=int(match[1]))
        if not text.endswith(("%", "/class")) and ("/" in text or "." in text or _is_file(text)):
            check_path(text, "labels")
            return cls(file=Path(text))
        raise ConfigError(f"labels={shown(text)}: expected {_FORMS}")

    @property
    def each(self) -> tuple["LabelBudget", ...]:
        """The budgets of all tasks, or the one that serves them all."""
        return self.by_task or (self,)

    def choose(self, labels: np.ndarray, order: Sequence[int], seed: int, names: tuple[str, ...]) -> np.ndarray:
        """The labeled images' indices, sorted: int64 [l].

        labels: [n] classes of all training images; order: the classes, task by task.
        """
        if self.file is not None:
            return _read_indices(self.file, labels, len(order), names)
        if self.by_task:
            size, left = divmod(len(order), len(self.by_task))
            if left:
                raise ConfigError(f"labels: {len(self.by_task)} budgets for {len(order)} classes, which don't divide")
            starts = range(0, len(order), size)
            parts = zip(self.by_task, starts, strict=True)
            found = [part.choose(labels, order[start : start + size], seed, names) for part, start in parts]
            return np.sort(np.concatenate(found))
        chosen = []
        for label in order:
            members = np.flatnonzero(labels == label)
            count = self.per_class if self.per_class is not None else max(1, round((self.fraction or 0) * len(members)))
            if count > len(members):
                raise ConfigError(
                    f"labels={count}/class, but class {names[label]!r} has only {len(members)} training images: "
                    f"ask for at most {len(members)}/class"
                )
            chosen.append(members[permutation(stream_key(seed, "labels", label), len(members))[:count]])
        return np.sort(np.concatenate(chosen))


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # no name that a file could have
        return False


def _read_indices(path: Path, labels: np.ndarray, num_classes: int, names: tuple[str, ...]) -> np.ndarray:
    try:
        lines = [line.strip() for line in read_text(path).splitlines() if line.strip()]
    except UserError as error:
        raise ConfigError(f"labels={str(path)!r}: the index file can't be read ({error}); expected {_FORMS}") from error
    for number, line in enumerate(lines, 1):
        if not line.isdecimal() or len(line) > 18 or int(line) >= len(labels):
            raise ConfigError(
                f"{path}, line {number}: {shown(line)} is not the index of one of {len(labels)} training images"
            )
    indices = np.unique(np.array(lines, dtype=np.int64))
    if len(indices) < len(lines):
        raise ConfigError(f"{path}: {len(lines) - len(indices)} indices stand in it twice; remove the repetitions")
    absent = np.setdiff1d(np.arange(num_classes), labels[indices])
    if len(absent):
        raise ConfigError(f"{path}: no index belongs to class {names[absent[0]]!r}; every class needs a label")
    return indices
