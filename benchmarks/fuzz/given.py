"""Cases of what is typed: every setting and every flag, with values that nobody should give.

What there is to try is taken from the code under test (its dataclasses and its parser), what is tried from a seed.
"""

import argparse
import dataclasses
import random
import types
from collections.abc import Iterator
from typing import Any, Union, get_args, get_origin, get_type_hints

from . import hostile
from .case import TRAIN, Case, Expected, beside, named

WRONG = {  # no setting that is a number, a truth or one of some words takes these
    "text": "certainly not",
    "mapping": "{a: 1}",
    "alias": "&a [*a]",
    "tag": "!!python/object/apply:os.system [id]",
    "deep": "[" * 3000,
    "hexadecimal": "0x" + "f" * 5000,
    "digits": "9" * 400,
    "many digits": "9" * 5000,
    "date": "2001-99-99",
    "escape": hostile.ESCAPE,
    "open": "[1, 2",
    "nan": ".nan",
    "inf": ".inf",
    "minus inf": "-.inf",
}
NUMBERS = {"minus": "-5", "zero": "0", "huge": "100000", "2**63": str(2**63), "2**64": str(2**64), "tiny": "1e-300"}
NUMBERS |= {"large": "1e300", "half": "0.5", "true": "true", "null": "null", "empty": "''", "list": "[1]"}
TEXTS = {
    "escape": hostile.ESCAPE,
    "long": "x" * 5000,
    "name": "folder:" + "x" * 300,
    "bidi": hostile.BIDI,
    "empty": "''",
}
TEXTS |= {
    "bytes": "\udcff\udcfe",
    "device": "a-zero",
    "number": "7",
    "list": "[1, 2]",
    "nul": '"a\\0b"',
}
TEXTS |= {"slashes": "a/" * 3000, "line": '"a\\nb"', "folder": ".", "percent": "%" * 300, "zeros": "0" * 500 + "/class"}


def setting_keys() -> dict[str, tuple[Any, str | None]]:
    """Return every setting's dotted key with its type, and the method that it belongs to, if it is one's own."""
    from nncsl.config import Config
    from nncsl.methods import METHODS

    keys: dict[str, tuple[Any, str | None]] = {key: (hint, None) for key, hint in _leaves(Config, "")}
    for name, method in METHODS.items():
        keys |= {f"own.{key}@{name}": (hint, name) for key, hint in _leaves(method.Settings, "")}
    return keys


def _leaves(kind: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        if get_origin(hint) in (Union, types.UnionType):
            hint = next(each for each in get_args(hint) if each is not type(None))
        if dataclasses.is_dataclass(hint):
            yield from _leaves(hint, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, hint


def settings(rng: random.Random) -> Iterator[Case]:
    """Every setting with values that it can't take, mostly asked of `config`, some of commands that do more."""
    for key, (hint, method) in setting_keys().items():
        words = ("--method", method) if method else ()
        name = key.split("@")[0]
        if hint is str:
            tried = [(each, "any") for each in TEXTS.items()]
        else:
            tried = [(each, "refused") for each in rng.sample(sorted(WRONG.items()), 5)]
            if hint in (int, float):
                tried += [(each, "any") for each in rng.sample(sorted(NUMBERS.items()), 6)]
        for (title, value), expected in tried:
            bad = expected == "refused" or (title in ("2**64", "minus") and hint is int)
            start = rng.choices(_STARTS, _WEIGHTS)[0] if bad or hint is str else ("config",)
            if (start == TRAIN and name in ("dataset", "data_dir")) or name == "device":
                start = ("config",)
            own = words if name.startswith("own") or name == "method" or start[0] != "data" else ()
            prepare = beside if hint is str else None
            yield Case(named(start), (*start, *own, "--set", f"{name}={value}"), expected, prepare, title)  # type: ignore[arg-type]


_STARTS: list[tuple[str, ...]] = [
    ("config",),
    TRAIN,
    ("plan", "--memory-budget", "2GB"),
    ("data", "show"),
    ("data", "prepare", "digits"),
]
_WEIGHTS = [16, 3, 0.5, 0.5, 1]


FLAG_VALUES = {
    "empty": "",
    "escape": hostile.ESCAPE,
    "bidi": hostile.BIDI,
    "long name": "x" * 300,
    "long path": "x/" * 3000,
    "bytes": "\udcff\udcfe",
    "line": "a\nb",
    "endless": "a-zero",
    "null device": "a-null",
    "missing": "missing/place",
    "file": "a-file",
    "a file's inside": "a-file/inside",
    "loop": "a-loop",
    "minus": "-5",
    "zero": "0",
    "digits": "9" * 400,
    "many digits": "9" * 5000,
    "nan": "nan",
    "formula": hostile.FORMULA,
    "other digits": "٣",
    "quotes": "'\";$(id)`id`",
    "nul": "a\0b",
}
# The words that a command needs besides the flag that is tried.
BASES: dict[str, tuple[str, ...]] = {
    "train": TRAIN,
    "plan": ("plan", "--memory-budget", "2GB"),
    "eval": ("eval", "run"),
    "predict": ("predict", "run", "image.png"),
    "export": ("export", "run", "--to", "out.safetensors"),
    "report": ("report", "run"),
    "metrics": ("metrics", "run"),
    "config": ("config",),
    "data prepare": ("data", "prepare", "digits"),
    "data show": ("data", "show"),
    "bank info": ("bank", "info", "run"),
    "bank verify": ("bank", "verify", "run"),
    "bank export": ("bank", "export", "run"),
    "bank query": ("bank", "query", "run", "7", "--no-image"),
    "methods": ("methods",),
    "data list": ("data", "list"),
    "completion": ("completion", "bash"),
}


def flags(rng: random.Random) -> Iterator[Case]:
    """Every flag and every argument of every command with values for which it was not made."""
    from nncsl.cli import build_parser

    found = dict(_parsers(build_parser(), ()))
    for command, base in BASES.items():
        for action in found[command]._actions:
            values = sorted(FLAG_VALUES.items())
            if action.nargs in (0, "?") or action.help == argparse.SUPPRESS:
                continue
            if command == "plan":
                values = rng.sample(values, 5)
            if action.dest == "ranks":
                values.remove(("other digits", FLAG_VALUES["other digits"]))  # three processes, as it should be
            for title, value in values:
                words = _with(base, action, value)
                numeric = action.type is int and title not in ("minus", "zero", "digits", "other digits")
                if words is not None:
                    expected: Expected = "refused" if numeric else "any"
                    yield Case(command, words, expected, beside, title)


def _parsers(parser: argparse.ArgumentParser, path: tuple[str, ...]) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    inner = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for action in inner:
        for name, each in action.choices.items():
            yield from _parsers(each, (*path, name))
    if not inner:
        yield " ".join(path), parser


def _with(base: tuple[str, ...], action: argparse.Action, value: str) -> tuple[str, ...] | None:
    """The words with the flag's value, or with another value for an argument that has no flag."""
    if action.option_strings:
        flag = max(action.option_strings, key=len)
        if flag == "--set":
            return (*base, f"--set={value}")
        return (*base, f"{flag}={value}")
    place = {"run_folder": "run", "path": "run", "runs": "run", "images": "image.png", "image": "7"}
    old = place.get(action.dest) or {"dataset": "digits", "shell": "bash"}.get(action.dest)
    return None if old is None else tuple(value if word == old else word for word in base)
