"""PAWS, the paper's starting point: no filter, and a linear head that only watches."""

from typing import ClassVar

from nncsl.config import Config
from nncsl.methods.nncsl import NNCSL


class PAWS(NNCSL):
    """Nearest neighbours over all supports, current and remembered; the head trains on detached features."""

    distills: ClassVar[bool] = False
    filters: ClassVar[bool] = False

    def backbone_share(self, config: Config) -> float:
        return 0.0
