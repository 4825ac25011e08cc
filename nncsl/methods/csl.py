"""CSL: NNCSL without distillation, with and without the filter on old supports."""

from typing import ClassVar

from nncsl.methods.nncsl import NNCSL


class CSL(NNCSL):
    """The base learner: nearest neighbours among the current task's supports, a linear head on everything labeled."""

    distills: ClassVar[bool] = False
    without_labels: ClassVar[str] = "remembered labels train the head"


class CSLNoFilter(CSL):
    """CSL with unlabeled images compared with the supports of all classes seen, which they do not belong to."""

    filters: ClassVar[bool] = False
    without_labels: ClassVar[str] = "its images are drawn to the old classes, whose labels are remembered"
