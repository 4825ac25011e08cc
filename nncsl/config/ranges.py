"""What a setting may be: a meaning, a unit and a range for each, and the check by them before anything starts."""

import math
from dataclasses import dataclass, fields
from typing import Any

from nncsl.errors import ConfigError, shown
from nncsl.files import check_path, check_text


@dataclass(frozen=True)
class Range:
    """Numbers from low to high; open ends don't belong to it."""

    low: float
    high: float
    open_low: bool = False
    open_high: bool = False

    def __contains__(self, value: float) -> bool:
        above = value > self.low if self.open_low else value >= self.low
        return above and (value < self.high if self.open_high else value <= self.high)

    def __str__(self) -> str:
        low, high = _figure(self.low), _figure(self.high)
        if self.high == 1:
            return f"{'above' if self.open_low else 'from'} {low} to {'under ' if self.open_high else ''}{high}"
        return f"above {low}, up to {high}" if self.open_low else f"{low} or more, up to {high}"


@dataclass(frozen=True)
class Setting:
    """range: of the number, or of each of several; path: the text names a file or a folder."""

    meaning: str
    range: Range | None = None
    unit: str = ""
    path: bool = False


def at_least(low: float, high: float) -> Range:
    """Return the range that begins with ``low``."""
    return Range(low, high)


def above(low: float, high: float) -> Range:
    """Return the range that begins beyond ``low``."""
    return Range(low, high, open_low=True)


def rows_of(settings: type) -> dict[str, Setting]:
    """Return the table's rows for a dataclass of settings, those of what it is derived from included."""
    from nncsl.config.table import TABLE

    found: dict[str, Setting] = {}
    for each in reversed(settings.__mro__):
        found |= TABLE.get(each.__name__, {})
    return found


def check(settings: Any, prefix: str = "") -> None:
    """Check every value of a dataclass of settings; a ConfigError names the first that can't be."""
    rows = rows_of(type(settings))
    for field in fields(settings):
        check_value(rows.get(field.name), getattr(settings, field.name), prefix + field.name)


def check_value(row: Setting | None, value: Any, name: str) -> None:
    """Check one value; without a row (a setting of somebody's own method): that it is a finite number or plain text."""
    for number in value if isinstance(value, tuple | list) else (value,):
        if isinstance(number, int | float) and not isinstance(number, bool):
            _check_number(row.range if row else None, number, name)
    if isinstance(value, str):
        check_text(value, name)
        if row is not None and row.path:
            check_path(value, name)


def _check_number(allowed: Range | None, value: float, name: str) -> None:
    if not (isinstance(value, int) or math.isfinite(value)):
        raise ConfigError(f"{name}={value}: expected a finite number{f', {allowed}' if allowed else ''}")
    if allowed is not None and value not in allowed:
        raise ConfigError(f"{name}={shown(value)}: expected {'a number ' if _is_part(allowed) else ''}{allowed}")


def _is_part(allowed: Range) -> bool:
    return allowed.open_low or allowed.high == 1


def _figure(value: float) -> str:
    if float(value).is_integer() and abs(value) < 1e10:
        return f"{int(value):,}"
    return f"{value:g}" if abs(value) < 2**53 else f"2**{round(math.log2(value))} - 1"
