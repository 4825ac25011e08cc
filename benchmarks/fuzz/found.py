"""Cases of what lies on disk: every file of a run, damaged or forged, and folders with hostile names."""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

from . import hostile
from .case import TRAIN, Case, beside, named

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
    "SHA256SUMS": (0, 1, 2, 4, 5),
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
PUT: list[object] = [None, 7, -1, 1e300, "text", hostile.MARKUP, hostile.ESCAPE, [], {}, True]


def _reading(file: str, reader: int, title: str, spoil: hostile.Spoil) -> Case:
    words = READERS[reader]

    def prepare(folder: Path, template: Path, rng: random.Random) -> None:
        beside(folder, template, rng)
        if words[0] == "train" and file != "summary.json":
            (folder / "run" / "summary.json").unlink()
        spoil(sorted((folder / "run").glob(file))[0], rng)

    return Case(named(words), words, "any", prepare, f"{file}: {title}")


def damaged_files() -> Iterator[Case]:
    """Every file of a run in every state that a disk or an attacker can leave it in, for the commands that read it."""
    for file, readers in FILES.items():
        for reader in readers:
            for title, spoil in hostile.DAMAGES.items():
                yield _reading(file, reader, title, spoil)


def forged_files() -> Iterator[Case]:
    """Files that are what they say they are, with contents that no run wrote."""
    yield from _forged_texts()
    yield from _forged_configurations()
    yield from _forged_journals()
    yield from _forged_archives()
    yield from _forged_banks()


def _forged_texts() -> Iterator[Case]:
    for file in ("config.yaml", "tasks.json", "metrics.jsonl", "summary.json", "snapshots/views.json"):
        for reader in FILES[file]:
            for title, value in hostile.VALUES.items():
                yield _reading(file, reader, title, _by(Path.write_text, value + "\n"))
            if file in ("tasks.json", "summary.json", "snapshots/views.json"):
                for put in PUT:
                    yield _reading(file, reader, f"all {str(put)[:9]!r}", _by(hostile.replace_values, put))


def _forged_configurations() -> Iterator[Case]:
    for reader in FILES["config.yaml"]:
        yield _reading("config.yaml", reader, "bomb", _by(Path.write_text, hostile.BOMB))
        yield _reading("config.yaml", reader, "bomb inside", _by(_bomb_inside))
        for key in ("dataset", "method", "labels", "tasks", "epochs", "seed", "own", "views", "network"):
            for value in ("null", "-7", "text", f"{hostile.ESCAPE!r}", "[1]", "9" * 400, hostile.MARKUP):
                if reader in (0, 4):
                    yield _reading("config.yaml", reader, f"{key}={value[:9]!r}", _by(_line_changed, key, value))


def _forged_journals() -> Iterator[Case]:
    epoch = {"kind": "epoch", "task": 0, "epoch": 0}
    for reader in FILES["metrics.jsonl"]:
        for line in (
            '{"kind": "epoch"}',
            '{"kind": "task", "task": 0}',
            "[]",
            '{"kind": 1, "task": "x", "epoch": []}',
            json.dumps({**epoch, "lr": 1, hostile.FORMULA: hostile.FORMULA}),
            json.dumps({**epoch, hostile.ESCAPE: hostile.ESCAPE}),
            json.dumps({"kind": "epoch", "task": 10**30, "epoch": 10**400, "lr": float("nan")}),
        ):
            yield _reading("metrics.jsonl", reader, line[:30], _by(_appended, line))
    for how in ("http", "script", "svg", "types", "list", "quote"):
        yield _reading("snapshots/views.json", 4, how, _by(Path.write_text, hostile.forged_views(how)))


def _forged_archives() -> Iterator[Case]:
    for number in range(24):
        yield _reading("snapshots/task-2.npz", 4, f"shape {number}", hostile.misshape_snapshot)
    yield _reading("snapshots/task-2.npz", 4, "names", _by(hostile.forge_snapshot))
    for file, member, readers in (
        ("snapshots/task-2.npz", "projections", (4,)),
        ("snapshots/task-2-tsne.npz", "points", (4,)),
        ("memory/*.npz", "ids", (2, 3)),
    ):
        for reader in readers:
            yield _reading(file, reader, "bomb", _by(_bomb_archive, member))
            yield _reading(file, reader, "promise", _by(hostile.promising_archive, member))
    for reader in FILES["checkpoint/state.pt"]:
        yield _reading("checkpoint/state.pt", reader, "compressed", _by(hostile.compressed))


def _forged_banks() -> Iterator[Case]:
    for reader in FILES["bank/CURRENT"]:
        yield _reading("bank/CURRENT", reader, "names /dev/zero", _by(hostile.endless_manifest))
        for key in ("generation", "dim", "codec", "teacher", "task", "views", "dataset", "shards", "agreement"):
            for put in (None, -1, 10**30, "x", hostile.ESCAPE, [1], {"a": 1}):
                yield _reading("bank/CURRENT", reader, f"{key}={str(put)[:9]!r}", _by(hostile.reseal, key, put))


def _by(change: Callable[..., object], *arguments: object) -> hostile.Spoil:
    """A change that needs no random numbers."""
    return lambda path, rng: change(path, *arguments)


def _bomb_archive(path: Path, member: str) -> None:
    path.write_bytes(hostile.bomb_archive(member))


def _bomb_inside(path: Path) -> None:
    kept = [line for line in path.read_text().splitlines() if not line.startswith("own:")]
    path.write_text("\n".join(kept) + "\nown: {" + hostile.BOMB.replace("\n", ", ").rstrip(", ") + "}\n")


def _line_changed(path: Path, key: str, value: str) -> None:
    lines = [f"{key}: {value}" if line.startswith(f"{key}:") else line for line in path.read_text().splitlines()]
    path.write_text("\n".join(lines) + "\n")


def _appended(path: Path, line: str) -> None:
    with path.open("a") as file:
        file.write(line + "\n")


def named_folders() -> Iterator[Case]:
    """Data sets and images with hostile names."""
    for title, name in hostile.NAMES.items():

        def prepare(folder: Path, template: Path, rng: random.Random, name: str = name) -> None:
            beside(folder, template, rng)
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
            yield Case(named(words), words, "any", prepare, f"names: {title}")
