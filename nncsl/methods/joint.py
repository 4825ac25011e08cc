"""The upper bound: all classes at once, nothing to forget."""

from typing import ClassVar

from nncsl.methods.csl import CSL


class Joint(CSL):
    """NNCSL's objective on one task that holds all data."""

    one_task: ClassVar[bool] = True

    @classmethod
    def uncontinued(cls, *, grown: bool) -> str:
        return "joint meets all classes at once: train it anew with all of them"
