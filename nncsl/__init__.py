"""Continual semi-supervised learning on little memory: NNCSL with a feature bank instead of a teacher network."""

from nncsl.version import __version__

__all__ = ["__version__"]
