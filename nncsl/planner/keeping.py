"""``--keep``: from an amount that a run may keep beside its student to the memory and the bank that make most of it.

The configured bank is the wish. Preferred, in this order: labeled images in the memory, as many as have labels; stored
sets of unlabeled views, which may cost up to half of those images; their replacement within a task; stored sets of
labeled views; the codec. docs/memory.md says why.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from nncsl import methods
from nncsl.config import Config, parse_bytes
from nncsl.data.sources import Source
from nncsl.data.tasks import Task
from nncsl.errors import ConfigError
from nncsl.planner.foreseen import Foresight
from nncsl.record import ledger
from nncsl.record.ledger import Parts

LEFT = 0.5  # the part of the images that more sets of unlabeled views have to leave in the memory
LEAST_SUPPORT_SETS = 4  # of labeled views: those of the memory are shown in every step, and wear out first
_MEANINGS = {
    "memory": "images in the memory",
    "bank_views": "stored sets of unlabeled views",
    "bank_refresh_epochs": "epochs until they are replaced (0: never)",
    "bank_support_views": "stored sets of labeled views",
    "bank_codec": "codec of the bank",
}


@dataclass(frozen=True)
class Choice:
    """The settings that fit, what is kept when that is most, and why each setting is not larger."""

    config: Config
    kept: Parts
    reasons: dict[str, str]

    def __str__(self) -> str:
        lines = [f"--keep {self.config.keep}: at most {ledger.line(self.kept)}"]
        for name, reason in self.reasons.items():
            lines.append(f"  {name}={getattr(self.config, name)}  {_MEANINGS[name]}: {reason}")
        return "\n".join(lines)


def within_keep(config: Config, source: Source, tasks: tuple[Task, ...], say: Callable[[str], None] = print) -> Config:
    """Return the settings that --keep asks for, and say which and why; those given where it asks for nothing."""
    if config.keep is None:
        return config
    choice = choose(config, Foresight(source.train, tasks, config))
    say(str(choice))
    return choice.config


def choose(wish: Config, foresight: Foresight) -> Choice:
    """Return the choice for ``wish.keep``; a ConfigError names the least that would do."""
    search = _Search(wish, foresight)
    search.refuse_the_impossible()
    if search.has_memory:
        search.most_images()
    if search.has_bank:
        least = lean(wish)
        search.most_views()
        search.best("bank_refresh_epochs", dict.fromkeys([wish.bank_refresh_epochs, 0]))
        search.best("bank_support_views", range(wish.support_sets, least.bank_support_views - 1, -1))
        search.best("bank_codec", dict.fromkeys([wish.bank_codec, least.bank_codec]))
    return search.choice()


def lean(wish: Config) -> Config:
    """Return the settings with the smallest bank that is considered."""
    return replace(
        wish,
        bank_views=1,
        bank_support_views=min(wish.support_sets, LEAST_SUPPORT_SETS),
        bank_refresh_epochs=0,
        bank_codec="int8" if wish.bank_codec in ("fp32", "fp16") else wish.bank_codec,
    )


class _Search:
    """The settings so far, from the leanest ones up, and why they went no further."""

    def __init__(self, wish: Config, foresight: Foresight) -> None:
        assert wish.keep is not None
        self._wish, self._foresight, self._limit = wish, foresight, parse_bytes(wish.keep, "keep", least=0)
        self._reasons: dict[str, str] = {}
        declared = methods.find(wish.method)
        self.has_memory = declared.uses_memory and not declared.remembers_all
        self._least = foresight.num_classes if self.has_memory else wish.memory  # an image of each class
        self._most = max(self._least, sum(len(task.labeled) for task in foresight.tasks))
        smallest = replace(wish, memory=self._least)
        self.has_bank = any("bank" in parts for parts in foresight.ledgers(smallest))
        self._config = lean(smallest) if self.has_bank else smallest

    def refuse_the_impossible(self) -> None:
        """Raise a ConfigError that names the least amount that would do, if this one is too small."""
        least, kept = self._config, self._foresight.peak(self._config)
        if kept[ledger.TOTAL] > self._limit:
            raise ConfigError(
                f"keep={least.keep}: too little for {least.method} with teacher_mode={least.teacher_mode}; the least "
                f"that would do is {_round_up(kept[ledger.TOTAL])}, with memory={least.memory}: {ledger.line(kept)}"
            )

    def most_images(self) -> None:
        """Take as many images as fit: those that are known to, or more, up to all labels."""
        known, most = self._config.memory, self._most
        while known < most:
            middle = (known + most + 1) // 2
            if self._fits(replace(self._config, memory=middle)):
                known = middle
            else:
                most = middle - 1
        self._config = replace(self._config, memory=known)
        everything = known == self._most
        self._reasons["memory"] = "all that have labels" if everything else self._too_much("memory", known + 1)

    def most_views(self) -> None:
        """Take as many sets of unlabeled views as leave enough images, then the images that fit beside them."""
        if self.has_memory:
            self._config = replace(self._config, memory=max(self._least, math.ceil(LEFT * self._config.memory)))
        self.best("bank_views", range(self._wish.bank_views, 0, -1))
        if self.has_memory:
            self.most_images()

    def best(self, name: str, values: Iterable[Any]) -> None:
        """Take the first of these values that fits; the very first is the wish, the last is known to fit."""
        too_much = None
        for value in values:
            if self._fits(replace(self._config, **{name: value})):
                break
            too_much = value
        self._reasons[name] = "as configured" if too_much is None else self._too_much(name, too_much)
        self._config = replace(self._config, **{name: value})

    def choice(self) -> Choice:
        return Choice(self._config, self._foresight.peak(self._config), self._reasons)

    def _fits(self, config: Config) -> bool:
        return self._foresight.peak(config)[ledger.TOTAL] <= self._limit

    def _too_much(self, name: str, value: Any) -> str:
        size = self._foresight.peak(replace(self._config, **{name: value}))[ledger.TOTAL]
        return f"{value} would make it {size / 1e6:.4g} MB"


def _round_up(size: int) -> str:
    """To the next kB."""
    return f"{-(-size // 1000)}kB"
