"""How a feature becomes bytes: fp32, fp16 (default), int8 and int4 with a scale per row, and product quantization.

Encoding happens once, when the bank is filled; decoding happens at every training step and uses torch alone.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

CODECS = ("fp32", "fp16", "int8", "int4", "pq")
CENTROIDS = 256  # one byte per sub-vector
KEY_BYTES = 12  # id and slot of a row
TRAINING_ROWS = 10_240  # what product quantization looks at to place its centroids


class Encoded(NamedTuple):
    values: np.ndarray[Any, Any]  # [n, width] of the codec's dtype, as stored
    scales: np.ndarray[Any, Any] | None  # [n] float16, int8 and int4 only


class Codec:
    """Plain floating point storage; the other codecs override encode and decode."""

    largest = float("inf")  # largest absolute value that can be stored
    scaled = False  # whether each row has a scale
    learned = False  # whether rows are read by codebooks
    codebooks: Tensor | None = None

    def __init__(self, name: str, dim: int, dtype: torch.dtype):
        self.name, self.dim, self.dtype, self.width = name, dim, dtype, dim
        self.numpy_dtype = torch.empty(0, dtype=dtype).numpy().dtype
        if dtype.is_floating_point:
            self.largest = torch.finfo(dtype).max

    @property
    def row_bytes(self) -> int:
        """Bytes per feature, scale included, key not."""
        return self.width * self.numpy_dtype.itemsize + 2 * self.scaled

    def nbytes(self, rows: int) -> int:
        """Bytes of so many features with their keys."""
        return rows * (self.row_bytes + KEY_BYTES)

    def encode(self, features: Tensor) -> Encoded:
        """features [n, dim] float32 on the CPU."""
        return Encoded(features.to(self.dtype).numpy(), None)

    def decode(self, values: Tensor, scales: Tensor | None) -> Tensor:
        """values [n, width], scales [n, 1] float32 or None -> [n, dim] float32 on the device of `values`."""
        return values.float()


class Int8(Codec):
    """127 steps to the largest entry of each row. Error per entry: at most .0045 of that entry, plus 4e-6."""

    scaled = True

    def __init__(self, name: str, dim: int):
        super().__init__(name, dim, torch.int8)
        self.largest = 65504.0 * 127

    def encode(self, features: Tensor) -> Encoded:
        # Divide by the scale as stored (rounded to fp16), so that its rounding is not an error of its own.
        scales = (features.abs().amax(1) / 127).half()
        steps = features / scales.float().clamp_min(torch.finfo(torch.float16).smallest_normal / 1024).unsqueeze(1)
        return Encoded(steps.round_().clamp_(-127, 127).to(torch.int8).numpy(), scales.numpy())

    def decode(self, values: Tensor, scales: Tensor | None) -> Tensor:
        assert scales is not None
        return values * scales  # promotes to float32 in one pass


class Int4(Codec):
    """16 levels in equal steps between the largest entry of each row and its negative, two entries in a byte.

    Error per entry: at most .067 of the row's largest entry, plus 5e-7. Zero is no level, which makes the steps 7%
    smaller than 15 levels around zero would; a row of zeros has scale 0 and stays what it is.
    """

    scaled = True

    def __init__(self, name: str, dim: int):
        super().__init__(name, dim, torch.uint8)
        self.width = -(-dim // 2)
        self.largest = 65504.0 * 7.5

    def encode(self, features: Tensor) -> Encoded:
        # Divide by the scale as stored (rounded to fp16), so that its rounding is not an error of its own.
        scales = (features.abs().amax(1) / 7.5).half()
        steps = features / scales.float().clamp_min(torch.finfo(torch.float16).smallest_normal / 1024).unsqueeze(1)
        levels = steps.add_(7.5).round_().clamp_(0, 15).to(torch.uint8)
        packed = levels[:, : self.width].clone()
        packed[:, : self.dim - self.width] |= levels[:, self.width :] << 4  # an odd dim leaves the last half byte 0
        return Encoded(packed.numpy(), scales.numpy())

    def decode(self, values: Tensor, scales: Tensor | None) -> Tensor:
        assert scales is not None
        levels = torch.cat([values & 15, values >> 4], 1)[:, : self.dim]
        return (levels - 7.5).mul_(scales)


class ProductQuantizer(Codec):
    """One byte per sub-vector: the number of the nearest of 256 centroids, which are trained on the first rows written.

    Training and encoding need FAISS; decoding is one gather and does not.
    """

    learned = True

    def __init__(self, name: str, dim: int, parts: int):
        super().__init__(name, dim, torch.uint8)
        self.width = parts
        self.largest = torch.finfo(torch.float32).max

    def nbytes(self, rows: int) -> int:
        return super().nbytes(rows) + CENTROIDS * self.dim * torch.float32.itemsize  # the codebooks

    def train(self, features: Tensor) -> None:
        """features [n >= 256, dim] float32. Sets `codebooks` [parts, 256, dim / parts]."""
        from .index import load_faiss

        if len(features) < CENTROIDS:
            raise ValueError(
                f"codec {self.name!r} is trained on the first commit of a generation and needs at least {CENTROIDS} "
                f"rows there, got {len(features)}; write more before commit(), or use codec='int8'"
            )
        quantizer = load_faiss().ProductQuantizer(self.dim, self.width, 8)
        quantizer.cp.min_points_per_centroid = 1
        quantizer.cp.niter = 10
        evenly = torch.linspace(0, len(features) - 1, min(len(features), TRAINING_ROWS)).long()
        quantizer.train(features[evenly].contiguous().numpy())
        centroids = load_faiss().vector_to_array(quantizer.centroids)
        self.codebooks = torch.from_numpy(centroids.reshape(self.width, CENTROIDS, self.dim // self.width).copy())

    def encode(self, features: Tensor) -> Encoded:
        assert self.codebooks is not None
        parts = features.view(len(features), self.width, -1)
        codes = torch.empty(len(features), self.width, dtype=torch.uint8)
        for part, centroids in enumerate(self.codebooks):
            for block in range(0, len(features), 8192):
                near = torch.cdist(parts[block : block + 8192, part], centroids)
                codes[block : block + 8192, part] = near.argmin(1).to(torch.uint8)
        return Encoded(codes.numpy(), None)

    def decode(self, values: Tensor, scales: Tensor | None) -> Tensor:
        assert self.codebooks is not None
        if self.codebooks.device != values.device:
            self.codebooks = self.codebooks.to(values.device)
        part = torch.arange(self.width, device=values.device)
        return self.codebooks[part, values.long()].view(len(values), self.dim)


def make_codec(name: str, dim: int) -> Codec:
    """'fp32', 'fp16', 'int8', 'int4', 'pq' (dim / 2 bytes) or 'pq32' (32 bytes)."""
    if name == "int8":
        return Int8(name, dim)
    if name == "int4":
        return Int4(name, dim)
    if name in ("fp32", "fp16"):
        return Codec(name, dim, torch.float32 if name == "fp32" else torch.float16)
    if match := re.fullmatch(r"pq(\d*)", name):
        parts = int(match[1] or dim // 2)
        if parts < 1 or dim % parts:
            raise ValueError(f"codec: {name!r} needs a dim that {parts} divides, got dim={dim}")
        return ProductQuantizer(name, dim, parts)
    raise ValueError(f"codec: expected one of {CODECS} or 'pq<bytes>', got {name!r}")


def agreement(features: Tensor, decoded: Tensor, supports: int = 500) -> float:
    """How often a decoded feature still finds the same nearest support (by cosine) as the original does.

    features, decoded [n, dim]; the first `supports` rows (at most half) are the supports, the others ask.
    """
    supports = min(supports, len(features) // 2)

    def nearest(rows: Tensor) -> Tensor:
        unit = torch.nn.functional.normalize(rows.float(), dim=1)
        return (unit[supports:] @ unit[:supports].T).argmax(1)

    return (nearest(features) == nearest(decoded)).float().mean().item()
