"""Several runs: those that differ in nothing but the seed belong together; a group's name is what sets it apart."""

import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from nncsl.config import build
from nncsl.report.charts import Series
from nncsl.report.collect import RunRecord, flat

# Where data lies does not make another experiment, nor does a head's room for later classes.
_SAME = ("seed", "data_dir", "cache_dir", "verify_data", "head_outputs")
_FIRST = ("dataset", "method", "teacher_mode", "distillation", "tasks", "labels", "memory", "epochs")
_SPEAKING = ("dataset", "method", "labels")  # values that need no key beside them


@dataclass(frozen=True)
class Group:
    """Runs of one setting.

    apart: the settings that tell all groups from each other; needed: those of them that this group's name needs;
    differing: all settings in which any groups differ.
    """

    name: str
    runs: tuple[RunRecord, ...]
    needed: list[str]
    apart: dict[str, Any]
    differing: dict[str, Any]

    @property
    def complete(self) -> list[RunRecord]:
        return [run for run in self.runs if run.complete]

    def mean(self, value: Callable[[RunRecord], float | None]) -> tuple[float, float | None] | None:
        """Mean and standard deviation over the complete runs; no deviation of a single one."""
        values = [v for run in self.complete if (v := value(run)) is not None]
        if not values:
            return None
        return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else None

    def curve(self, points: Callable[[RunRecord], Iterable[tuple[float, float]]]) -> Series:
        """The mean over the runs at each x, with its deviation."""
        at: dict[float, list[float]] = {}
        for run in self.runs:
            for x, y in points(run):
                at.setdefault(x, []).append(y)
        ordered = sorted(at)
        deviations = [statistics.stdev(at[x]) if len(at[x]) > 1 else 0.0 for x in ordered]
        return Series(self.name, [(x, statistics.mean(at[x])) for x in ordered], deviations)


def group(records: Sequence[RunRecord]) -> list[Group]:
    """The groups in the order in which they were first named."""
    differing = _differing(records)
    members: dict[str, list[RunRecord]] = {}
    for record in records:
        settings = flat(record.config)
        members.setdefault(_identity(settings, differing), []).append(record)
    firsts = [flat(runs[0].config) for runs in members.values()]
    apart = _telling_apart(firsts, differing)
    return [
        Group(
            name=_name(settings, _needed(settings, firsts, apart)) or f"{settings['method']} on {settings['dataset']}",
            runs=tuple(runs),
            needed=_needed(settings, firsts, apart),
            apart={key: settings.get(key) for key in apart},
            differing={key: settings.get(key) for key in differing},
        )
        for settings, runs in zip(firsts, members.values(), strict=True)
    ]


def _differing(records: Sequence[RunRecord]) -> list[str]:
    """The settings in which any two of the runs differ, those that people speak of first."""
    first = flat(records[0].config)
    found = [key for other in records[1:] for key, _, _ in build.differences(first, flat(other.config))]
    keys = [key for key in dict.fromkeys(found) if key not in _SAME]
    return sorted(keys, key=lambda key: _FIRST.index(key) if key in _FIRST else len(_FIRST))


def _telling_apart(settings: list[dict[str, Any]], keys: list[str]) -> list[str]:
    """As few of the keys as give each of the settings a name of its own."""
    chosen: list[str] = []
    for key in keys:
        before = len({_identity(s, chosen) for s in settings})
        if before < len(settings) and len({_identity(s, [*chosen, key]) for s in settings}) > before:
            chosen.append(key)
    return chosen


def _needed(settings: dict[str, Any], everyone: list[dict[str, Any]], keys: list[str]) -> list[str]:
    """The first of the keys, as many as leave nobody else with the same values."""
    count = next(n for n in range(len(keys) + 1) if sum(_alike(settings, s, keys[:n]) for s in everyone) == 1)
    return keys[:count]


def _alike(a: dict[str, Any], b: dict[str, Any], keys: list[str]) -> bool:
    return _identity(a, keys) == _identity(b, keys)


def _identity(settings: dict[str, Any], keys: list[str]) -> str:
    return json.dumps([settings.get(key) for key in keys])


def _name(settings: dict[str, Any], keys: list[str]) -> str:
    return ", ".join(str(settings.get(k)) if k in _SPEAKING else f"{k}={settings.get(k)}" for k in keys)
