"""How many labels there are, and on which images: a pure function of the seed, the same on every machine."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nncsl.data import label_files
from nncsl.data.division import divided
from nncsl.data.label_files import Published
from nncsl.data.rng import permutation, stream_key
from nncsl.errors import ConfigError, shown
from nncsl.files import check_path

_FORMS = (
    '"0.8%" (of each class), "4/class", a list of such, one per task ("100%,5%,0%"), or the path of a file with one '
    "training image per line, by its name or its index"
)


@dataclass(frozen=True)
class LabelBudget:
    """A fraction of each class, a number per class, a published list of images, or one of the first two for each task.

    Exactly one is set.
    """

    fraction: float | None = None
    per_class: int | None = None
    file: Path | None = None
    by_task: tuple["LabelBudget", ...] = ()

    @classmethod
    def parse(cls, text: str) -> "LabelBudget":
        """Reads ``"0.8%"``, ``"4/class"``, a list of such, or the path of a file that names images."""
        if "," in text and not _is_file(text):
            parts = tuple(cls._parse_one(part) for part in text.split(","))
            if any(part.file for part in parts):
                raise ConfigError(f"labels={text!r}: expected only percentages and numbers per class in a list")
            parsed = cls(by_task=parts)
        else:
            parsed = cls._parse_one(text)
        if not any(part.file or part.fraction or part.per_class for part in parsed.each):
            raise ConfigError(f"labels={text!r}: without any label nothing can be learned; expected {_FORMS}")
        return parsed

    @classmethod
    def _parse_one(cls, text: str) -> "LabelBudget":
        if match := re.fullmatch(r"\s*([0-9]{1,9}(?:\.[0-9]{0,15})?|\.[0-9]{1,15})\s*%\s*", text):
            percent = float(match[1])
            if not 0 <= percent <= 100:
                raise ConfigError(f"labels={text!r}: expected a percentage from 0 to 100")
            return cls(fraction=percent / 100)
        if match := re.fullmatch(r"\s*([0-9]{1,9})\s*/\s*class\s*", text):
            return cls(per_class=int(match[1]))
        if not text.endswith(("%", "/class")) and ("/" in text or "." in text or _is_file(text)):
            check_path(text, "labels")
            return cls(file=Path(text))
        raise ConfigError(f"labels={shown(text)}: expected {_FORMS}")

    @property
    def each(self) -> tuple["LabelBudget", ...]:
        """The budgets of all tasks, or the one that serves them all."""
        return self.by_task or (self,)

    def choose(
        self,
        labels: np.ndarray,
        order: Sequence[int],
        seed: int,
        names: tuple[str, ...],
        sizes: Sequence[int] | None = None,
        published: Published = Published(),  # noqa: B008 - nothing of it changes
    ) -> np.ndarray:
        """The labeled images' indices, sorted: int64 [l].

        labels: [n] classes of all training images; order: the classes, task by task; names: of the classes; sizes: how
        many classes each budget of a list is for (default: as even as they go); published: what lists call the images.
        """
        if self.file is not None:
            return label_files.read(self.file, labels, order, names, published)
        if self.by_task:
            ends = np.cumsum(divided(len(order), len(self.by_task)) if sizes is None else sizes).tolist()
            parts = zip(self.by_task, [0, *ends[:-1]], ends, strict=True)
            found = [part.choose(labels, order[start:end], seed, names) for part, start, end in parts]
            return np.sort(np.concatenate(found))
        chosen = [np.zeros(0, np.int64)]
        for label in order:
            members = np.flatnonzero(labels == label)
            count = self._count(len(members))
            if count > len(members):
                raise ConfigError(
                    f"labels={count}/class, but class {names[label]!r} has only {len(members)} training images: "
                    f"ask for at most {len(members)}/class"
                )
            chosen.append(members[permutation(stream_key(seed, "labels", label), len(members))[:count]])
        return np.sort(np.concatenate(chosen))

    def _count(self, images: int) -> int:
        """Return how many images of a class are labeled: of any fraction at least one."""
        if self.per_class is not None:
            return self.per_class
        return max(1, round(self.fraction * images)) if self.fraction else 0


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # no name that a file could have
        return False
