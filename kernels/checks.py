"""Argument checks: a ValueError names the argument, what was expected and what was got.

Shapes, dtypes and devices cost nothing to check and are checked on every call. The values of labels and mask
are checked on every call too when they are in CPU memory. On other devices looking at values would wait for the
device: there a label that is no class, or a mask without a used support, shows as NaN in the results.
"""

import math

import torch
from torch import Tensor

from .operators import transformed
from .problem import Problem

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def check_vectors(name: str, x: Tensor, device: torch.device) -> None:
    """`x` must be a floating [rows, D] tensor on `device`."""
    if not isinstance(x, Tensor):
        raise ValueError(f"{name} must be a tensor [rows, dim], got {type(x).__name__}")
    if x.dim() != 2 or x.shape[1] == 0:
        raise ValueError(f"{name} must have shape [rows, dim] with dim >= 1, got shape {list(x.shape)}")
    if x.dtype not in FLOATS:
        raise ValueError(f"{name} must be float32, float16, bfloat16 or float64, got {x.dtype}")
    if x.device != device:
        raise ValueError(f"{name} must be on {device} like queries, got {x.device}")


def check_pair(queries: Tensor, supports: Tensor) -> None:
    check_vectors("queries", queries, queries.device if isinstance(queries, Tensor) else torch.device("cpu"))
    check_vectors("supports", supports, queries.device)
    if supports.shape[0] == 0:
        raise ValueError("supports is empty (shape [0, dim]): at least one support is needed")
    if supports.shape[1] != queries.shape[1]:
        raise ValueError(f"supports must have dim {queries.shape[1]} like queries, got shape {list(supports.shape)}")


def check_teacher(queries: Tensor, supports: Tensor, teacher_queries: Tensor, teacher_supports: Tensor) -> None:
    """The teacher's vectors correspond row by row to the student's; their dim may differ."""
    if queries.shape[0] == 0:
        raise ValueError("queries is empty (shape [0, dim]): a mean over queries needs at least one")
    for name, x, like in (("queries", teacher_queries, queries), ("supports", teacher_supports, supports)):
        check_vectors(f"teacher_{name}", x, queries.device)
        if x.shape[0] != like.shape[0]:
            raise ValueError(f"teacher_{name} must have {like.shape[0]} rows like {name}, got shape {list(x.shape)}")
    if teacher_queries.shape[1] != teacher_supports.shape[1]:
        dim = teacher_queries.shape[1]
        raise ValueError(
            f"teacher_supports must have dim {dim} like teacher_queries, got shape {list(teacher_supports.shape)}"
        )


def check_labels(labels: Tensor, mask: Tensor | None, supports: Tensor) -> None:
    """Everything about labels and mask but their values."""
    count = supports.shape[0]
    if not isinstance(labels, Tensor):
        raise ValueError(f"labels must be a tensor [K] or [K, C], got {type(labels).__name__}")
    if labels.dim() not in (1, 2) or labels.shape[0] != count:
        raise ValueError(
            f"labels must have shape [{count}] or [{count}, C] for {count} supports, got {list(labels.shape)}"
        )
    allowed = INTEGERS if labels.dim() == 1 else FLOATS
    if labels.dtype not in allowed:
        kind = "of an integer type" if labels.dim() == 1 else "floating (one row of class weights per support)"
        raise ValueError(f"labels of shape {list(labels.shape)} must be {kind}, got {labels.dtype}")
    if labels.device != supports.device:
        raise ValueError(f"labels must be on {supports.device} like supports, got {labels.device}")
    if mask is None:
        return
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != (count,):
        got = f"{mask.dtype} {list(mask.shape)}" if isinstance(mask, Tensor) else type(mask).__name__
        raise ValueError(f"mask must be a bool tensor of shape [{count}] (True: the support is used), got {got}")
    if mask.device != supports.device:
        raise ValueError(f"mask must be on {supports.device} like supports, got {mask.device}")


def checked_number(name: str, value: float | Tensor) -> float:
    """Return a number that is differentiated by nobody."""
    if isinstance(value, Tensor) and value.requires_grad:
        raise ValueError(
            f"{name} must be a number, got a tensor that requires grad: gradients exist for queries and supports only "
            f"(pass float({name}))"
        )
    return float(value)


def check_numbers(num_classes: int | None, temperature: float, smoothing: float, labels: Tensor) -> None:
    if not (temperature > 0 and math.isfinite(temperature)):
        raise ValueError(f"temperature must be a finite number > 0, got {temperature}")
    if not 0 <= smoothing < 1:
        raise ValueError(f"smoothing must be in [0, 1), got {smoothing}")
    if num_classes is not None and num_classes < 1:
        raise ValueError(f"num_classes must be >= 1, got {num_classes}")
    if labels.dim() == 2:
        if labels.shape[1] == 0:
            raise ValueError(f"labels must have at least one class column, got shape {list(labels.shape)}")
        if num_classes not in (None, labels.shape[1]):
            raise ValueError(f"num_classes is {num_classes}, but labels have {labels.shape[1]} columns")


def check_neighbors(k: int, block: int, supports: Tensor) -> None:
    if not 1 <= k <= supports.shape[0]:
        raise ValueError(f"k must be in [1, {supports.shape[0]}] for {supports.shape[0]} supports, got {k}")
    if block < 1:
        raise ValueError(f"block must be >= 1, got {block}")


def values_are_at_hand(x: Tensor) -> bool:
    """Return whether one can look at the values without waiting for a device, or for a transform of torch.func."""
    return x.device.type == "cpu" and not transformed()


def check_values(problem: Problem) -> None:
    """Labels must be classes, and the mask must leave a support."""
    labels, mask, num_classes = problem.labels, problem.mask, problem.num_classes
    if not values_are_at_hand(labels):
        return
    if labels.dim() == 1:
        smallest, largest = torch.aminmax(labels)
        low, high = smallest.item(), largest.item()
        if low < 0 or high >= num_classes:
            wrong = low if low < 0 else high
            raise ValueError(f"labels must be in [0, {num_classes}) for num_classes={num_classes}, got {wrong}")
    if mask is not None and not bool(mask.any()):
        raise ValueError(f"mask uses none of the {mask.shape[0]} supports: at least one must be True")


def checked_problem(
    queries: Tensor, supports: Tensor, labels: Tensor, mask: Tensor | None,
    num_classes: int | None, temperature: float, smoothing: float, log: bool = False,
) -> Problem:  # fmt: skip
    """Return the arguments as a problem, if everything but the values of labels and mask is right."""
    check_pair(queries, supports)
    check_labels(labels, mask, supports)
    temperature, smoothing = checked_number("temperature", temperature), checked_number("smoothing", smoothing)
    check_numbers(num_classes, temperature, smoothing, labels)
    if labels.dim() == 2:
        return Problem(queries, supports, labels.detach(), mask, labels.shape[1], temperature, smoothing, log)
    classes = int(labels.max()) + 1 if num_classes is None else num_classes
    return Problem(queries, supports, labels, mask, classes, temperature, smoothing, log)
