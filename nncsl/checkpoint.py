"""A run's state in one file, replaced atomically: whatever happens, the last complete one is there."""

import io
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from nncsl.errors import UserError

FORMAT = 1


class CheckpointError(UserError):
    """A checkpoint is missing, damaged or belongs to another configuration."""


def save(path: Path, state: Mapping[str, Any]) -> None:
    """Tensors, numbers, strings, lists and dicts of them; written beside, synced, then renamed over the old one."""
    image = io.BytesIO()  # whole first: a disk that is full half-way is then an ordinary OSError
    torch.save({"format": FORMAT, **state}, image)
    _replace(path, image.getbuffer(), "the previous checkpoint is intact; make room and resume")


def load(path: Path) -> dict[str, Any]:
    """What :func:`save` wrote. Loading never executes code from the file."""
    if not path.exists():
        raise CheckpointError(f"{path.parent.parent} holds no checkpoint: nothing was saved yet, start the run again")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise CheckpointError(f"{path} can't be read ({str(error).splitlines()[0]}); start the run again") from error
    if state.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} has format {state.get('format')}, expected {FORMAT}: use the nncsl that wrote it"
        )
    return state


def write_text(path: Path, text: str) -> None:
    """A small file, written beside and renamed."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes | memoryview) -> None:
    """The same for bytes."""
    _replace(path, content, "make room or choose another --out")


def sync_folder(path: Path) -> None:
    """Makes renames in the folder survive a power loss."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _replace(path: Path, content: bytes | memoryview, advice: str) -> None:
    beside = path.with_name(path.name + ".new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        beside.unlink(missing_ok=True)
        needed, free = len(content) / 1e6, shutil.disk_usage(path.parent).free / 1e6
        raise CheckpointError(
            f"{path} can't be written: {error.strerror} ({needed:.2f} MB needed, {free:.2f} MB free); {advice}"
        ) from error
