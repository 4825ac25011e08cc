"""A backbone of the user's own: a function somewhere on the path that returns a module."""

import importlib
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nncsl.errors import ConfigError
from nncsl.networks.backbone import Backbone, whole

_SIDE = 64  # pixels of the images that it is tried on


def build(name: str) -> Backbone:
    """Return what ``module:function`` names: a module from images [n, 3, H, W] to features [n, F], tried on one."""
    module = _function(name)()
    if not isinstance(module, nn.Module):
        raise ConfigError(f"network.backbone={name!r} returned {type(module).__name__}: expected a torch.nn.Module")
    modes = [(inner, inner.training) for inner in module.modules()]
    try:
        with torch.no_grad():
            found: Any = module.eval()(torch.zeros(2, 3, _SIDE, _SIDE))
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigError(
            f"network.backbone={name!r} can't take images [2, 3, {_SIDE}, {_SIDE}] ({reason}): views have several sizes"
        ) from error
    for inner, training in modes:
        inner.training = training
    if not isinstance(found, Tensor) or found.ndim != 2 or len(found) != 2:
        shape = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise ConfigError(f"network.backbone={name!r} made {shape} of 2 images: expected features [2, F]")
    return whole(module, found.shape[1])


def _function(name: str) -> Any:
    """The function that is meant; modules of the working directory are found as well."""
    path, _, function = name.partition(":")
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        found = getattr(importlib.import_module(path), function, None)
    except ImportError as error:
        raise ConfigError(
            f"network.backbone={name!r}: {error}; expected module:function, importable from {here}"
        ) from error
    finally:
        if added:
            sys.path.remove(here)
    if not callable(found):
        raise ConfigError(f"network.backbone={name!r}: {path} has no function {function!r}")
    return found
