"""A run's state in one file, replaced atomically: whatever happens, the last complete one is there."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from nncsl.errors import UserError
from nncsl.files import write_file

FORMAT = 2


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
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise CheckpointError(f"{path} can't be read ({str(error).splitlines()[0]}); start the run again") from error
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


def _tensor_bytes(state: Any) -> int:
    """Bytes of the tensors in nested mappings and lists, and a little for each."""
    if isinstance(state, torch.Tensor):
        return state.numel() * state.element_size() + 512
    if isinstance(state, Mapping):
        return sum(map(_tensor_bytes, state.values()))
    return sum(map(_tensor_bytes, state)) if isinstance(state, list | tuple) else 0
