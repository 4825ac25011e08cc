"""The cases: every setting, every flag and every file of a run, with values and contents that nobody should give.

What there is to try is taken from the code under test (its dataclasses and its parser), what is tried is fixed by a seed.
"""

import argparse
import dataclasses
import json
import random
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

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


def cases(seed: int) -> list[Case]:
    """Return all cases, in an order of their own for each seed."""
    rng = random.Random(seed)
    made = [*settings(rng), *flags(rng), *damaged_files(), *forged_files(), *named_folders(), *commands()]
    rng.shuffle(made)
    return made


# Settings ----------------------------------------------------------------------------------------------------------

WRONG = {  # no setting that is a number, a truth or one of some words takes these
    "text": "certainly not",
    "mapping": "{a: 1}",
    "alias": "&a [*a]",
    "bomb": "{" + hostile.BOMB.replace("\n", ", ").rstrip(", ") + "}",
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
    "device": "/dev/zero",
    "number": "7",
    "list": "[1, 2]",
    "nul": '"a\\0b"',
    "bomb": WRONG["bomb"],
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
            if name.startswith("own") or name == "method" or start[0] != "data":
                yield Case(_named(start), (*start, *words, "--set", f"{name}={value}"), expected, title=title)  # type: ignore[arg-type]
            else:
                yield Case(_named(start), (*start, "--set", f"{name}={value}"), expected, title=title)  # type: ignore[arg-type]


_STARTS: list[tuple[str, ...]] = [
    ("config",),
    TRAIN,
    ("plan", "--memory-budget", "2GB"),
    ("data", "show"),
    ("data", "prepare", "digits"),
]
_WEIGHTS = [12, 3, 1, 1, 1]


def _named(words: tuple[str, ...]) -> str:
    return " ".join(words[: 2 if words[0] in ("data", "bank") else 1])


# Flags -------------------------------------------------------------------------------------------------------------

FLAG_VALUES = {
    "empty": "",
    "escape": hostile.ESCAPE,
    "bidi": hostile.BIDI,
    "long name": "x" * 300,
    "long path": "x/" * 3000,
    "bytes": "\udcff\udcfe",
    "line": "a\nb",
    "endless": "/dev/zero",
    "null device": "/dev/null",
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
            if action.nargs == 0 or action.help == argparse.SUPPRESS:
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
                    yield Case(command, words, expected, _beside, title)


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


def _beside(folder: Path, template: Path, rng: random.Random) -> None:
    """A copy of the run, an image, a file and a link to itself."""
    hostile.copied(template, folder / "run")
    hostile.png(folder / "image.png")
    (folder / "a-file").write_text("text\n")
    (folder / "a-loop").symlink_to("a-loop")


# Files -------------------------------------------------------------------------------------------------------------

READERS = [  # what reads a run's folder; a run without summary is resumed
    ("train", "--quiet", "--no-report", "--resume", "run"),
    ("eval", "run"),
    ("predict", "run", "image.png", "--by", "neighbors"),
    ("export", "run", "--to", "out.safetensors"),
    ("report", "run"),
    ("metrics", "run"),
    ("bank", "info", "run"),
    ("bank", "verify", "run"),
    ("bank", "export", "run"),
    ("bank", "query", "run", "7"),
    ("bank", "query", "run", "7", "--no-image"),
]
FILES = {  # and by which of these
    "config.yaml": range(11),
    "tasks.json": (0, 2, 4),
    "metrics.jsonl": (0, 4, 5),
    "summary.json": (0, 4),
    "command.txt": (4,),
    "checkpoint/state.pt": (0, 1, 2, 3, 6),
    "snapshots/task-1.npz": (4,),
    "snapshots/task-2.npz": (4,),
    "snapshots/task-2-tsne.npz": (4,),
    "snapshots/views.json": (4,),
    "memory/*.npz": (0, 2, 3),
    "bank/CURRENT": (6, 7, 8, 10),
    "bank/MANIFEST-*": (6, 7, 8, 10),
    "bank/shards/*": (6, 7, 8, 10),
}


def _reading(file: str, reader: int, title: str, spoil: Callable[[Path, random.Random], object]) -> Case:
    words = READERS[reader]

    def prepare(folder: Path, template: Path, rng: random.Random) -> None:
        _beside(folder, template, rng)
        if words[0] == "train" and file != "summary.json":
            (folder / "run" / "summary.json").unlink()
        spoil(sorted((folder / "run").glob(file))[0], rng)

    return Case(_named(words), words, "any", prepare, f"{file}: {title}")


def damaged_files() -> Iterator[Case]:
    """Every file of a run in every state that a disk or an attacker can leave it in, for every command that reads it."""
    for file, readers in FILES.items():
        for reader in readers:
            for title, spoil in hostile.DAMAGES.items():
                yield _reading(file, reader, title, spoil)


def forged_files() -> Iterator[Case]:
    """Files that are what they say they are, with contents that no run wrote."""
    for file in ("config.yaml", "tasks.json", "metrics.jsonl", "summary.json", "snapshots/views.json"):
        for reader in FILES[file]:
            for title, value in hostile.VALUES.items():
                yield _reading(file, reader, title, lambda path, rng, value=value: path.write_text(value + "\n"))
            if file in ("tasks.json", "summary.json", "snapshots/views.json"):
                for put in (None, 7, -1, 1e300, "text", hostile.MARKUP, hostile.ESCAPE, [], {}, True):
                    title = f"all {str(put)[:9]!r}"
                    yield _reading(file, reader, title, lambda path, rng, put=put: hostile.replace_values(path, put))
    for reader in FILES["config.yaml"]:
        yield _reading("config.yaml", reader, "bomb", lambda path, rng: path.write_text(hostile.BOMB))
        yield _reading("config.yaml", reader, "bomb inside", _bomb_inside)
        for key in ("dataset", "method", "labels", "tasks", "epochs", "seed", "own", "views", "network"):
            for value in ("null", "-7", "text", f"{hostile.ESCAPE!r}", "[1]", "9" * 400, hostile.MARKUP):
                if reader in (0, 4):
                    yield _reading("config.yaml", reader, f"{key}={value[:9]!r}", _line_changed(key, value))
    for reader in FILES["metrics.jsonl"]:
        for line in ('{"kind": "epoch"}', '{"kind": "task", "task": 0}', "[]", '{"kind": 1, "task": "x", "epoch": []}',
                     json.dumps({"kind": "epoch", "task": 0, "epoch": 0, "lr": 1, hostile.FORMULA: hostile.FORMULA}),
                     json.dumps({"kind": "epoch", "task": 0, "epoch": 0, hostile.ESCAPE: hostile.ESCAPE}),
                     json.dumps({"kind": "epoch", "task": 10**30, "epoch": 10**400, "lr": float("nan")})):  # fmt: skip
            yield _reading("metrics.jsonl", reader, line[:30], lambda path, rng, line=line: _appended(path, line))
    for how in ("http", "script", "svg", "types", "list", "quote"):
        yield _reading("snapshots/views.json", 4, how, lambda p, rng, how=how: p.write_text(hostile.forged_views(how)))
    for number in range(24):
        yield _reading("snapshots/task-2.npz", 4, f"shape {number}", lambda p, rng: hostile.misshape_snapshot(p, rng))
    yield _reading("snapshots/task-2.npz", 4, "names", lambda path, rng: hostile.forge_snapshot(path))
    for file, member, readers in (
        ("snapshots/task-2.npz", "projections", (4,)),
        ("snapshots/task-2-tsne.npz", "points", (4,)),
        ("memory/*.npz", "ids", (2, 3)),
    ):
        for reader in readers:
            bomb = lambda path, rng, member=member: path.write_bytes(hostile.bomb_archive(member))  # noqa: E731
            yield _reading(file, reader, "bomb", bomb)
            promise = lambda path, rng, member=member: hostile.promising_archive(path, member)  # noqa: E731
            yield _reading(file, reader, "promise", promise)
    for reader in FILES["checkpoint/state.pt"]:
        yield _reading("checkpoint/state.pt", reader, "compressed", lambda path, rng: hostile.compressed(path))
    for reader in FILES["bank/CURRENT"]:
        yield _reading("bank/CURRENT", reader, "names /dev/zero", lambda p, rng: hostile.endless_manifest(p.parent))
        for key in ("generation", "dim", "codec", "teacher", "task", "views", "dataset", "shards", "agreement"):
            for put in (None, -1, 10**30, "x", hostile.ESCAPE, [1], {"a": 1}):
                change = lambda manifest, key=key, put=put: manifest.update({key: put})  # noqa: E731
                reseal = lambda path, rng, change=change: hostile.reseal(path.parent, change)  # noqa: E731
                yield _reading("bank/CURRENT", reader, f"{key}={str(put)[:9]!r}", reseal)


def _bomb_inside(path: Path, rng: random.Random) -> None:
    kept = [line for line in path.read_text().splitlines() if not line.startswith("own:")]
    path.write_text("\n".join(kept) + "\nown: {" + hostile.BOMB.replace("\n", ", ").rstrip(", ") + "}\n")


def _line_changed(key: str, value: str) -> Callable[[Path, random.Random], object]:
    def change(path: Path, rng: random.Random) -> None:
        lines = [f"{key}: {value}" if line.startswith(f"{key}:") else line for line in path.read_text().splitlines()]
        path.write_text("\n".join(lines) + "\n")

    return change


def _appended(path: Path, line: str) -> None:
    with path.open("a") as file:
        file.write(line + "\n")


def named_folders() -> Iterator[Case]:
    """Data sets and images with hostile names."""
    for title, name in hostile.NAMES.items():

        def prepare(folder: Path, template: Path, rng: random.Random, name: str = name) -> None:
            _beside(folder, template, rng)
            hostile.image_folder(folder / "images", name)

        own = ("--dataset", "folder:images", "--set", "cache_dir=cache", "--labels", "1/class", "--memory", "4")
        for words in (
            ("data", "prepare", "folder:images", "--set", "cache_dir=cache"),
            ("data", "show", *own, "--tasks", "2"),
            (*TRAIN, *own),
            ("predict", "run", "images", "--csv", "out.csv"),
            ("predict", "run", "images", "--by", "neighbors", "--sheet", "out.png"),
            ("predict", "run", f"images/{name}.png"),
            ("report", "run", "-o", f"{name}.html"),
            ("eval", name),
            ("metrics", "run", "--out", f"{name}.csv"),
        ):
            yield Case(_named(words), words, "any", prepare, f"names: {title}")


def commands() -> Iterator[Case]:
    """Words that are no command, and commands that should just work."""
    for word in FLAG_VALUES.values():
        yield Case("(none)", (word,), "refused")
    for words in (("bench", "nothing"), ("bench", "views", "--bogus"), ("data",), ("bank", "info"), ()):
        yield Case(words[0] if words else "(none)", words, "refused")
    for shell in ("bash", "zsh", "fish"):
        yield Case("completion", ("completion", shell), "done")
    for name in ("eval", "predict", "export", "report", "metrics", "bank info", "bank verify", "bank export", "config"):
        yield Case(name, BASES[name], "done", _beside)
    yield Case("train", TRAIN, "done", _beside)
    yield Case("train", READERS[0], "done", _beside)
    yield Case("train", (*TRAIN, "--set", "bank_codec=pq", "--set", "bank_views=1", "--set", "unlabeled_fraction=0.01"),
               "refused", _beside, "pq with few rows")  # fmt: skip
    yield Case("train", (*TRAIN, "--bank-views", "100000000"), "refused", _beside, "a bank for no disk")
    yield Case("train", (*TRAIN, "--set", "network.width=100000"), "refused", _beside, "a network for no machine")
    yield Case("train", (*TRAIN, "--memory-budget", "2"), "refused", _beside, "two bytes")
