"""Continual-learning metrics of an accuracy matrix. R[i][j]: accuracy (percent) on task j's classes after task i.

None is what could not be measured: the test images of a task before a continued run's own may be gone. What it takes
part in is None as well.
"""

from collections.abc import Sequence

Accuracies = Sequence[float | None]
Matrix = Sequence[Accuracies]


def average_accuracy(matrix: Matrix) -> float | None:
    """ACC: mean over tasks of the final accuracies; what the paper's tables report."""
    return _mean(matrix[-1])


def average_incremental_accuracy(seen_accuracy: Accuracies) -> float | None:
    """Mean over i of the accuracy over all classes seen after task i."""
    return _mean(seen_accuracy)


def forward_transfer(ahead: Accuracies, untrained: Accuracies) -> float | None:
    """FWT: mean over i >= 2 of R[i-1][i] - r[i], unseen classes' logits unmasked in both.

    ahead: R[i-1][i] for i = 2..T; untrained: r[i] of a randomly initialized network for the same i. None where the
    method can't judge classes that it has not seen.
    """
    return _mean([_difference(a, r) for a, r in zip(ahead, untrained, strict=True)])


def backward_transfer(matrix: Matrix) -> float | None:
    """BWT: mean over i < T of R[T][i] - R[i][i]."""
    return _mean([_difference(matrix[-1][i], matrix[i][i]) for i in range(len(matrix) - 1)])


def forgetting(matrix: Matrix) -> float | None:
    """Mean over i < T of max_k R[k][i] - R[T][i], k from the task itself on."""
    return _mean(forgotten(matrix))


def forgotten(matrix: Matrix) -> list[float | None]:
    """Return the same of each task but the last: its best accuracy less its final one."""
    last = len(matrix) - 1
    best = [max((a for row in matrix[i:] if (a := row[i]) is not None), default=None) for i in range(last)]
    return [_difference(best[i], matrix[last][i]) for i in range(last)]


def _difference(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


def _mean(values: Accuracies) -> float | None:
    """0 for nothing: a single task has nothing to transfer or to forget."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    return sum(known) / len(known) if known else 0.0
