"""All cases of a seed: what is typed, what lies on disk, and some that have to work."""

import random
from collections.abc import Iterator

from . import hostile
from .case import TRAIN, Case, beside
from .found import READERS, damaged_files, forged_files, named_folders
from .given import BASES, FLAG_VALUES, flags, settings


def cases(seed: int) -> list[Case]:
    """Return all cases, in an order of their own for each seed."""
    rng = random.Random(seed)
    made = [*settings(rng), *flags(rng), *damaged_files(), *forged_files(), *named_folders(), *commands()]
    rng.shuffle(made)
    return made


def commands() -> Iterator[Case]:
    """Words that are no command, and commands that should just work."""
    for word in FLAG_VALUES.values():
        yield Case("(none)", (word,), "refused")
    for words in (("bench", "nothing"), ("bench", "views", "--bogus"), ("data",), ("bank", "info"), ()):
        yield Case(words[0] if words else "(none)", words, "refused")
    for shell in ("bash", "zsh", "fish"):
        yield Case("completion", ("completion", shell), "done")
    for name in ("eval", "predict", "export", "report", "metrics", "bank info", "bank verify", "bank export", "config"):
        yield Case(name, BASES[name], "done", beside)
    yield Case("train", TRAIN, "done", beside)
    yield Case("train", READERS[0], "done", beside)
    yield Case("train", (*TRAIN, "--set", "bank_codec=pq", "--set", "bank_views=1", "--set", "unlabeled_fraction=0.01"),
               "refused", beside, "pq with few rows")  # fmt: skip
    yield Case("train", (*TRAIN, "--bank-views", "100000000"), "refused", beside, "a bank for no disk")
    yield Case("train", (*TRAIN, "--set", "network.width=100000"), "refused", beside, "a network for no machine")
    yield Case("train", (*TRAIN, "--memory-budget", "2"), "refused", beside, "two bytes")
    bomb = "{" + hostile.BOMB.replace("\n", ", ").rstrip(", ") + "}"
    for key in ("epochs", "labels", "own", "views", "network.blocks", "unknown"):
        yield Case("config", ("config", "--set", f"{key}={bomb}"), "refused", title="bomb")
