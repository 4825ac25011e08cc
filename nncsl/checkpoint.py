"""A run's state in one file, replaced atomically: whatever happens, the last complete one is there."""

import os
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
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".new")
    try:
        with beside.open("wb") as file:
            torch.save({"format": FORMAT, **state}, file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        sync_folder(path.parent)
    except (OSError, RuntimeError) as error:
        beside.unlink(missing_ok=True)
        raise CheckpointError(
            f"{path} can't be written ({error}); the previous checkpoint is intact, make room"
        ) from error


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
    beside = path.with_name(path.name + ".new")
    try:
        with beside.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise CheckpointError(
            f"{path} can't be written: {error.strerror}; make room or choose another --out"
        ) from error


def sync_folder(path: Path) -> None:
    """Makes renames in the folder survive a power loss."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
