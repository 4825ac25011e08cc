"""Arguments as they come (lists, numpy, torch, any device) made into what the bank works with, or refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ROLES = ("unlabeled", "support", "replay")
LARGEST_SLOT = 2**31 - 1


def integers(name: str, values: Any, length: int | None = None) -> NDArray[np.int64]:
    """One int64 per row: [n], or ValueError."""
    array = values.numpy(force=True) if isinstance(values, Tensor) else np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"{name}: expected shape [n], got {list(array.shape)}")
    if length is not None and len(array) != length:
        raise ValueError(f"{name}: expected one per id, {length}, got {len(array)}")
    if array.dtype == np.int64:
        return array
    if array.size == 0:
        return array.astype(np.int64)
    if array.dtype.kind not in "iu" or array.dtype == np.uint64:
        raise ValueError(f"{name}: expected signed integers, got {array.dtype}")
    return array.astype(np.int64)


def slot_numbers(slots: Any, length: int) -> NDArray[np.int64]:
    array = integers("slots", slots, length)
    if length and (array.min() < 0 or array.max() > LARGEST_SLOT):
        raise ValueError(f"slots: expected numbers in [0, {LARGEST_SLOT}], got {array.min()} to {array.max()}")
    return array


def label_numbers(labels: Any, length: int) -> NDArray[np.int64] | None:
    if labels is None:
        return None
    array = integers("labels", labels, length)
    if length and (array.min() < -1 or array.max() > LARGEST_SLOT):
        raise ValueError(f"labels: expected classes in [0, {LARGEST_SLOT}] or -1, got {array.min()} to {array.max()}")
    return array


def feature_rows(features: Any, length: int, dim: int, largest: float, codec: str) -> Tensor:
    """[n, dim] float32 on the CPU, finite and within what the codec can hold."""
    tensor = features.detach() if isinstance(features, Tensor) else torch.from_numpy(np.asarray(features))
    if tensor.ndim != 2 or tensor.shape[1] != dim:
        raise ValueError(f"features: expected shape [n, {dim}], got {list(tensor.shape)}")
    if len(tensor) != length:
        raise ValueError(f"features: expected one row per id, {length}, got {len(tensor)}")
    if not tensor.is_floating_point():
        raise ValueError(f"features: expected floating point numbers, got {tensor.dtype}")
    tensor = tensor.cpu().to(torch.float32).contiguous()
    if tensor.numel():
        low, high = (bound.item() for bound in tensor.aminmax())  # one pass; a NaN anywhere makes both NaN
        if not np.isfinite([low, high]).all():
            row = int((~tensor.isfinite().all(1)).nonzero()[0])
            raise ValueError(f"features: expected finite numbers, got NaN or infinity in row {row}")
        if max(-low, high) > largest:
            raise ValueError(f"features: expected at most {largest:g} for codec {codec!r}, got {max(-low, high):g}")
    return tensor


def known_role(role: str) -> str:
    if role not in ROLES:
        raise ValueError(f"role: expected one of {ROLES}, got {role!r}")
    return role


def listed(ids: NDArray[np.int64], slots: NDArray[np.int64], limit: int = 10) -> str:
    """'(3, 0), (7, 1), and 12 more' for error messages."""
    pairs = ", ".join(f"({i}, {s})" for i, s in zip(ids[:limit].tolist(), slots[:limit].tolist(), strict=True))
    return pairs + (f", and {len(ids) - limit} more" if len(ids) > limit else "")
