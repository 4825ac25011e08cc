"""A run's state in one file, replaced atomically: whatever happens, the last complete one is there."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from nncsl.errors import UserError
from nncsl.files import write_file
from nncsl.record import archives

FORMAT = 2
_LARGEST = 1 << 40
_MOST_VALUES = 500_000  # lists, mappings and what is in them, each as often as it appears


class CheckpointError(UserError):
    """A checkpoint is missing, damaged or belongs to another configuration."""


def save(path: Path, state: Mapping[str, Any]) -> None:
    """Tensors, numbers, strings, lists and dicts of them; written beside, synced, then renamed over the old one."""
    contents = {"format": FORMAT, **state}
    size = _tensor_bytes(contents)
    advice = "the previous checkpoint is intact; make room and resume"
    write_file(path, lambda file: torch.save(contents, file), size=size, advice=advice)


def load(path: Path) -> dict[str, Any]:
    """What :func:`save` wrote. Loading never executes code from the file."""
    if not path.exists():
        raise CheckpointError(f"{path.parent.parent} holds no checkpoint: nothing was saved yet, start the run again")
    try:
        archives.check_stored(path, _LARGEST)
        state = torch.load(path, map_location="cpu", weights_only=True)
        _count(state)
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(f"{path} can't be read ({reason}); start the run again") from error
    if not isinstance(state, dict):
        raise CheckpointError(f"{path} is not the checkpoint of a run; start the run again")
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
