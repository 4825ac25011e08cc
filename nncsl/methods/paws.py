"""PAWS, the paper's starting point: no filter, and a linear head that only watches."""

from typing import ClassVar

from nncsl.methods.csl import CSLNoFilter


class PAWS(CSLNoFilter):
    """Nearest neighbours over all supports, current and remembered; the head trains on detached features."""

    weighs_labels: ClassVar[bool] = False
    lambda_lin = 0.0
