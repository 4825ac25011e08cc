"""Continual-learning metrics of an accuracy matrix. R[i][j]: accuracy (percent) on task j's classes after task i."""

from collections.abc import Sequence

Matrix = Sequence[Sequence[float]]


def average_accuracy(matrix: Matrix) -> float:
    """ACC: mean over tasks of the final accuracies; what the paper's tables report."""
    return _mean(matrix[-1])


def average_incremental_accuracy(seen_accuracy: Sequence[float]) -> float:
    """Mean over i of the accuracy over all classes seen after task i."""
    return _mean(seen_accuracy)


def forward_transfer(ahead: Sequence[float | None], untrained: Sequence[float]) -> float | None:
    """FWT: mean over i >= 2 of R[i-1][i] - r[i], unseen classes' logits unmasked in both.

    ahead: R[i-1][i] for i = 2..T; untrained: r[i] of a randomly initialized network for the same i. None where the
    method can't judge classes that it has not seen.
    """
    known = [a - r for a, r in zip(ahead, untrained, strict=True) if a is not None]
    return _mean(known) if len(known) == len(ahead) else None


def backward_transfer(matrix: Matrix) -> float:
    """BWT: mean over i < T of R[T][i] - R[i][i]."""
    return _mean([matrix[-1][i] - matrix[i][i] for i in range(len(matrix) - 1)])


def forgetting(matrix: Matrix) -> float:
    """Mean over i < T of max_k R[k][i] - R[T][i], k from the task itself on."""
    last = len(matrix) - 1
    return _mean([max(matrix[k][i] for k in range(i, last + 1)) - matrix[last][i] for i in range(last)])


def _mean(values: Sequence[float]) -> float:
    """0 for nothing: a single task has nothing to transfer or to forget."""
    return sum(values) / len(values) if values else 0.0
