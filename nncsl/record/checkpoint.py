"""A run's state in one file, replaced atomically: whatever happens, the last complete one is there."""

import errno
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch

from nncsl.errors import UserError

FORMAT = 1


class CheckpointError(UserError):
    """A checkpoint is missing, damaged or belongs to another configuration."""


def save(path: Path, state: Mapping[str, Any]) -> None:
    """Tensors, numbers, strings, lists and dicts of them; written beside, synced, then renamed over the old one."""
    contents = {"format": FORMAT, **state}
    advice = "the previous checkpoint is intact; make room and resume"
    _replace(path, lambda file: torch.save(contents, file), _tensor_bytes(contents), advice)


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
    _replace(path, lambda file: file.write(content), len(content), "make room or choose another --out")


def sync_folder(path: Path) -> None:
    """Makes renames in the folder survive a power loss."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _replace(path: Path, write: Callable[[BinaryIO], object], size: int, advice: str) -> None:
    """``size``: about as many bytes as ``write`` will write."""
    beside = path.with_name(path.name + ".new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("wb") as file:
            _reserve(file, size)
            write(file)
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        beside.unlink(missing_ok=True)
        needed, free = size / 1e6, shutil.disk_usage(path.parent).free / 1e6
        raise CheckpointError(
            f"{path} can't be written: {error.strerror} ({needed:.2f} MB needed, {free:.2f} MB free); {advice}"
        ) from error


def _reserve(file: BinaryIO, size: int) -> None:
    """Takes the room first, so that a full disk is an ordinary OSError and not one half-way through torch's writer.

    The alternative, to put the file together in memory, takes twice its size.
    """
    if not size or not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):  # file systems that can't
            raise


def _tensor_bytes(state: Any) -> int:
    """Bytes of the tensors in nested mappings and lists, and a little for each."""
    if isinstance(state, torch.Tensor):
        return state.numel() * state.element_size() + 512
    if isinstance(state, Mapping):
        return sum(map(_tensor_bytes, state.values()))
    return sum(map(_tensor_bytes, state)) if isinstance(state, list | tuple) else 0
