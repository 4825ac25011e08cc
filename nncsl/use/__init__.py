"""Using what a run has learned: ``nncsl.load(RUN).predict(images)``, ``nncsl predict``, ``nncsl export``."""

from nncsl.use.model import Model, Neighbor, Predictions

__all__ = ["Model", "Neighbor", "Predictions"]
