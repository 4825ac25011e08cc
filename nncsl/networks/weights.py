"""Weights of a backbone in a file: read, checked by name and shape, known by their sha256, written."""

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nncsl import files
from nncsl.config import NetworkConfig
from nncsl.errors import ConfigError, UserError

_CLASSIFIERS = ("fc", "head", "head.fc", "classifier")  # what torchvision and timm call the part that a backbone lacks
_SHOWN = 6  # names in an error


def pinned(config: NetworkConfig) -> NetworkConfig:
    """Return the settings with the path resolved and the file's sha256, which has to be the one given, if one is."""
    if config.weights is None:
        return config
    path = Path(config.weights).expanduser().resolve()
    return replace(config, weights=str(path), weights_sha256=_checked(path, config.weights_sha256))


def load(module: nn.Module, config: NetworkConfig) -> None:
    """Put the file's weights into a backbone; names and shapes have to fit, apart from those of a classifier."""
    path = Path(str(config.weights)).expanduser()
    _checked(path, config.weights_sha256)
    found, wanted = _read(path), module.state_dict()
    left = [name for name in sorted(found) if name not in wanted and name.rpartition(".")[0] in _CLASSIFIERS]
    found = {name: tensor for name, tensor in found.items() if name not in left}
    problems = {
        "not in the file": [name for name in wanted if name not in found and not name.endswith("num_batches_tracked")],
        f"not in {config.backbone}": [name for name in found if name not in wanted],
        "of another shape": [
            f"{name} {list(found[name].shape)}, {list(wanted[name].shape)} expected"
            for name in wanted.keys() & found.keys()
            if found[name].shape != wanted[name].shape
        ],
    }
    if any(problems.values()):
        raise ConfigError(
            f"network.weights={path} does not fit network.backbone={config.backbone}: "
            + "; ".join(f"{what}: {_listed(names)}" for what, names in problems.items() if names)
            + ". Choose the network that the file is of (network.backbone, network.stem, network.width, network.blocks)"
        )
    if left:
        _note(f"{path.name}: {', '.join(left)} belong to a classifier and are not used")
    module.load_state_dict(found, strict=False)


def write(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write a file that ``network.weights`` takes, beside and renamed; facts: where it comes from, plain values."""
    save_file = safetensors_for(path).torch.save_file
    contents = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with files.written_beside(path, advice="choose another --out") as beside:
        save_file(contents, beside, metadata={"nncsl": json.dumps(facts)})


def sha256(path: Path) -> str:
    """Return the checksum of a file."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(2**20):
            found.update(part)
    return found.hexdigest()


def _checked(path: Path, expected: str | None) -> str:
    if not path.is_file():
        raise ConfigError(f"network.weights={path}: there is no such file")
    found = sha256(path)
    if expected not in (None, found):
        raise ConfigError(
            f"network.weights={path} has sha256 {found}, {expected} was expected: the file has changed since; "
            "put the other one back, or start a new run"
        )
    return found


def _read(path: Path) -> dict[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            return safetensors_for(path).torch.load_file(path)
        found = torch.load(path, map_location="cpu", weights_only=True)
    except UserError:
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigError(
            f"network.weights={path} can't be read ({reason}): expected safetensors or torch.save's weights"
        ) from error
    for key in ("state_dict", "model"):  # what training scripts put them under
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    if not isinstance(found, Mapping) or not all(isinstance(value, Tensor) for value in found.values()):
        raise ConfigError(f"network.weights={path} holds {type(found).__name__}: expected tensors by name")
    return dict(found)


def safetensors_for(path: Path) -> Any:
    """Return the package that reads and writes such files; where it is missing, say how to get it."""
    try:
        import safetensors.torch
    except ImportError as error:
        raise UserError(f'{path.name} needs safetensors ({error}): pip install "nncsl[backbones]"') from error
    return safetensors


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


@lru_cache(maxsize=8)  # a network is built several times in a run
def _note(text: str) -> None:
    print(f"nncsl: note: {text}", file=sys.stderr)
