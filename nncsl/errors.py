"""Errors that are the user's to solve, printed without a traceback; and how what came from outside is shown."""

import difflib
import re
from collections.abc import Iterable

_LONGEST_SHOWN = 80
# What a terminal acts upon instead of showing it: control characters (not line ends and tabs), marks that turn the
# direction of text, line separators, and the halves of characters that stand for bytes which are not UTF-8.
_INVISIBLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


class UserError(Exception):
    """Something outside the program is not as it has to be; the message names it and says what to do."""

    exit_code = 2


class ConfigError(UserError, ValueError):
    """A setting is unknown, of the wrong type or impossible together with the others."""


class DataError(UserError):
    """A data file or folder is missing, corrupt or not usable."""


class DamagedError(DataError):
    """A file that was written whole is not any more; scripts can tell this from a mistyped path."""

    exit_code = 3


def visible(text: str) -> str:
    """Return text that can be printed: names and values from outside must not command the terminal."""
    return _INVISIBLE.sub(lambda found: ascii(found[0])[1:-1], text)


def shown(value: object) -> str:
    """Return a value for a message: as Python writes it, and short."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of more digits than Python writes, or what contains itself
        text = f"a value of type {type(value).__name__} that is too long to show"
    return visible(text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}... ({len(text)} characters)")


def suggestion(name: object, known: Iterable[str], prefix: str = "") -> str:
    """Return "; did you mean ...?" with the nearest of the known names, or nothing where none is near."""
    names, asked = list(known), shown(name).strip("'").lower()
    whole = [each for each in names if asked in re.split(r"[_.:-]", each)]
    near = difflib.get_close_matches(asked, names, n=2, cutoff=0.6)
    found = list(dict.fromkeys([*near[:1], *whole, *near[1:]]))[:4]
    return f"; did you mean {' or '.join(prefix + each for each in found)}?" if found else ""
