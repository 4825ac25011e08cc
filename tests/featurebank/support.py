"""What the tests of the bank share: unit vectors, dense keys, and how far a codec may be off."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

EXACT_CODECS = ("fp32", "fp16", "int8", "int4")
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def unit_rows(n: int, dim: int = 128, seed: int = 0) -> Tensor:
    return normalize(torch.randn(n, dim, generator=torch.Generator().manual_seed(seed)), dim=1)


def dense_keys(images: int, slots: int) -> tuple[Tensor, Tensor]:
    """(ids, slots), each [images * slots], image by image."""
    return torch.arange(images).repeat_interleave(slots), torch.arange(slots).repeat(images)


def error_bound(codec: str, features: Tensor) -> Tensor:
    """Largest allowed absolute error per entry, [n, dim], as docs/featurebank.md states it."""
    if codec == "fp32":
        return torch.zeros_like(features)
    if codec == "fp16":
        return features.abs() * 2**-11 + 2**-25
    of_largest, beside = {"int8": (0.0045, 4e-6), "int4": (0.067, 5e-7)}[codec]
    return (features.abs().amax(1, keepdim=True) * of_largest + beside).expand_as(features)
