"""What is known of the data: all that memory depends on."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """Images of a task, at the most, those to test with, and bytes of all of them."""

    classes: int
    unlabeled_per_task: int
    labeled_per_task: int
    data_bytes: int
    test_images: int = 0
