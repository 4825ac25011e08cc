"""What a case is, and the small run that cases are about."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

from . import hostile

Expected = Literal["refused", "done", "any"]
TINY = (
    "epochs=1",
    "warmup_epochs=0",
    "network.width=4",
    "network.blocks=[1]",
    "network.hidden=8",
    "unlabeled_batch=512",
)
TRAIN = ("train", "--quiet", "--no-report", "--out", "out", "--tasks", "2", *(w for s in TINY for w in ("--set", s)))
Prepare = Callable[[Path, Path, random.Random], object]  # the case's own folder, the template run, random numbers


class Case(NamedTuple):
    """A command's words, run in a folder of its own that ``prepare`` has filled; command: by which it is counted."""

    command: str
    words: tuple[str, ...]
    expected: Expected = "any"
    prepare: Prepare | None = None
    title: str = ""

    @property
    def name(self) -> str:
        """What the case is, short enough for a line."""
        words = " ".join(word if len(word) < 60 else f"{word[:50]}... ({len(word)})" for word in self.words)
        return f"{words} [{self.title}]" if self.title else words


def named(words: tuple[str, ...]) -> str:
    return " ".join(words[: 2 if words[0] in ("data", "bank") else 1])


def beside(folder: Path, template: Path, rng: random.Random) -> None:
    """A copy of the run, an image, a file, a link to itself, and links to devices.

    Links, because what is written is renamed into place: over a link that costs the link, over a device the device.
    """
    hostile.copied(template, folder / "run")
    hostile.png(folder / "image.png")
    (folder / "a-file").write_text("text\n")
    (folder / "a-loop").symlink_to("a-loop")
    (folder / "a-zero").symlink_to("/dev/zero")
    (folder / "a-null").symlink_to("/dev/null")
