"""Continual semi-supervised learning on little memory: NNCSL with a feature bank instead of a teacher network.

model = nncsl.load("runs/digits-nncsl-seed0")
model.predict("photo.png").names
"""

from os import PathLike
from typing import TYPE_CHECKING

from nncsl.version import __version__

if TYPE_CHECKING:
    from nncsl.use import Model

__all__ = ["__version__", "load"]


def load(run: str | PathLike[str], device: str = "auto") -> "Model":
    """Return what the run in this folder has learned, as its last checkpoint has it, ready to predict."""
    from pathlib import Path

    from nncsl.use import Model  # imports torch, which ``import nncsl`` does not

    return Model.open(Path(run), device)
