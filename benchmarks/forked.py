"""Runs in children of this process, which has imported everything and computed nothing; and what a run ends with."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

TIMES = {"seconds", "images_per_second", "peak_memory", "ranks"}


def get_ready() -> None:
    """Import what children need, and start no threads: they would not survive a fork."""
    torch.set_num_threads(1)
    for name in ("nncsl.runs", "nncsl.report.collect", "nncsl.use", "sklearn.datasets", "torch._dynamo"):
        importlib.import_module(name)


def start(work: Callable[[], int], log: Path, environment: Mapping[str, str] | None = None) -> int:
    """Do ``work`` in a child whose output goes to ``log``; return the child's id when it is about to begin."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        os.read(reading, 1)
        os.close(reading)
        return child
    code = 1
    try:
        os.environ.update(environment or {})
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.write(writing, b"r")
        code = work()
        sys.stdout.flush()
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def done(work: Callable[[], int], log: Path) -> tuple[int, str]:
    """Do ``work`` in a child; return its exit code and all that it said."""
    log.unlink(missing_ok=True)
    _, status = os.waitpid(start(work, log), 0)
    return os.waitstatus_to_exitcode(status), log.read_text()


def learned(folder: Path) -> dict[str, str]:
    """Return checksums of everything that a finished run has learned, measured and kept."""
    saved = torch.load(folder / "checkpoint" / "state.pt", weights_only=True)["method"]
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    measured = [
        {key: value for key, value in each.items() if key not in TIMES}
        for each in (*lines, json.loads((folder / "summary.json").read_text()))
    ]
    kept = [path for name in ("snapshots", "memory") for path in sorted((folder / name).iterdir())]
    return {
        "weights": digest(*(part for key in saved for part in (key.encode(), saved[key].numpy().tobytes()))),
        "measurements": digest(json.dumps(measured).encode()),
        "tasks": digest((folder / "tasks.json").read_bytes()),
        **{path.name: digest(path.read_bytes()) for path in kept if "tsne" not in path.name},
    }


def digest(*parts: bytes) -> str:
    """Return the sha256 of all parts, one after the other."""
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return found.hexdigest()
