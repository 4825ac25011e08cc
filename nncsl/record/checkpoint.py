"""A run's state in one file, replaced atomically: whatever happens, the last complete one is there.

The one before it is kept, with everything that it refers to, for the case that a disk damages the last one.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from nncsl.errors import DamagedError, UserError
from nncsl.featurebank.files import sha256_of
from nncsl.files import name_beside, write_file
from nncsl.record import archives, checksums

FORMAT = 2
STATE, PREVIOUS = "state.pt", "previous.pt"
_MOST_VALUES = 500_000  # lists, mappings and what is in them, each as often as it appears


class CheckpointError(UserError):
    """A checkpoint is missing, damaged or belongs to another configuration."""


class DamagedCheckpointError(CheckpointError, DamagedError):
    """A checkpoint is not what was written."""


def save(path: Path, state: Mapping[str, Any]) -> None:
    """Tensors, numbers, strings, lists and dicts of them; written beside, synced, then renamed over the old one.

    ``path`` is RUN/checkpoint/NAME. What was saved as the run's state before is kept as its previous one.
    """
    contents = {"format": FORMAT, **state}
    run, previous = path.parent.parent, path.with_name(PREVIOUS)

    def before_rename(beside: Path) -> None:
        digests = {_name(path): sha256_of(beside)}
        if path.name == STATE:
            digests |= checksums.of_second_name(run, _name(path), _name(previous))
        checksums.announce(run, digests)
        if path.name == STATE and path.exists():
            _keep(path, previous)

    advice = "the previous checkpoint is intact; make room and resume"
    write_file(
        path,
        lambda file: torch.save(contents, file),
        size=_tensor_bytes(contents),
        advice=advice,
        before_rename=before_rename,
    )


def load(path: Path) -> dict[str, Any]:
    """What :func:`save` wrote. Loading never executes code from the file."""
    run, previous = path.parent.parent, path.with_name(PREVIOUS)
    if path != previous and previous.exists():
        other = f"the checkpoint before it is kept: nncsl train --resume {run} --previous goes on from there"
    else:
        other = "start the run again"
    if not path.exists():
        raise CheckpointError(f"{run} holds no checkpoint: nothing was saved yet, {other}")
    try:
        archives.check_stored(path, archives.LARGEST)  # quick: no checksum of what is no archive
        checksums.check(run, _name(path), archives.LARGEST)
        state = torch.load(path, map_location="cpu", weights_only=True)
        _count(state)
    except DamagedError as error:
        raise DamagedCheckpointError(f"{error}. Or {other}") from error
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(f"{path} can't be read ({reason}); {other}") from error
    if not isinstance(state, dict):
        raise CheckpointError(f"{path} is not the checkpoint of a run; {other}")
    if state.get("format") == 1:  # the network alone, before methods had a state: enough to evaluate it
        named = {f"network.{name}": value for name, value in state["network"].items()}
        state["method"] = {name.replace("network.feature_map", "feature_map"): value for name, value in named.items()}
        state["state"]["epochs"] = state["state"]["epoch"]
        return state
    if state.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} has format {state.get('format')}, expected {FORMAT}: use the nncsl that wrote it"
        )
    return state


def fall_back(folder: Path) -> None:
    """Make a run's previous checkpoint its last one again."""
    previous = folder / "checkpoint" / PREVIOUS
    if not previous.exists():
        raise CheckpointError(f"{folder} holds no checkpoint before its last one: resume it without --previous")
    load(previous)
    checksums.announce(folder, checksums.of_second_name(folder, _name(previous), f"checkpoint/{STATE}"))
    _keep(previous, previous.with_name(STATE))


def _name(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def _keep(path: Path, name: Path) -> None:
    """Give a file a second name as well; where file systems can't, the second one alone."""
    beside = name_beside(name)
    try:
        os.link(path, beside, follow_symlinks=False)
    except OSError:
        path.replace(name)
    else:
        beside.replace(name)
        beside.unlink(missing_ok=True)  # renaming does nothing where the file has that second name already


@contextmanager
def understood(path: Path) -> Iterator[None]:
    """Turn what goes wrong in the block, where a loaded checkpoint is taken apart, into one line that names it."""
    try:
        yield
    except UserError:
        raise
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            f"{path} is damaged, or does not belong to the files beside it ({type(error).__name__}: {reason[:200]}): "
            "copy the run anew or start it again"
        ) from error


def _count(state: Any, left: int = _MOST_VALUES, depth: int = 0) -> int:
    """Return how many more values there may be; a few bytes can stand for a list of lists that has no end."""
    if left < 0 or depth > 50:
        raise ValueError("it holds more values than a run has")
    inside = state.values() if isinstance(state, Mapping) else state if isinstance(state, list | tuple) else ()
    left -= 1
    for each in inside:
        left = _count(each, left, depth + 1)
    return left


def _tensor_bytes(state: Any) -> int:
    """Bytes of the tensors in nested mappings and lists, and a little for each."""
    if isinstance(state, torch.Tensor):
        return state.numel() * state.element_size() + 512
    if isinstance(state, Mapping):
        return sum(map(_tensor_bytes, state.values()))
    return sum(map(_tensor_bytes, state)) if isinstance(state, list | tuple) else 0
