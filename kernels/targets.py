"""Tile sizes, warps, stages and precisions per kind of GPU, in one table; nothing is tuned at run time.

Chosen from static figures (no stack, no spills, tensor-core instructions: `nncsl.benchmarks.kernels --static`).
"""

from typing import NamedTuple

import torch


class Tile(NamedTuple):
    """What a program holds at a time, and how it is run."""

    queries: int
    supports: int
    warps: int
    stages: int
    classes: int = 64  # few supports are multiplied once more for every so many classes


class Plan(NamedTuple):
    """How vectors of one width and type are treated on one kind of GPU."""

    width: int  # dim, padded to a power of two
    half: bool  # whether vectors are multiplied in their own half-precision type
    forward: Tile
    gradient: Tile
    precision: str  # of products of fp32 vectors
    sum_precision: str  # of products with 0/1 matrices, always as good as fp32


# By kind of GPU (or one architecture that differs), and whether vectors are of half precision: (width up to which,
# forward, gradient). What is not here would spill, and is sent to the blockwise back end.
TABLE: dict[tuple[str, bool], list[tuple[int, Tile, Tile]]] = {
    ("cuda", True): [
        (64, Tile(32, 32, 8, 1, 32), Tile(32, 32, 8, 2)),
        (128, Tile(32, 32, 8, 2), Tile(32, 32, 8, 2)),
        (256, Tile(16, 32, 8, 2), Tile(16, 32, 8, 1)),
        (512, Tile(16, 32, 8, 1), Tile(16, 16, 8, 2, 16)),
    ],
    ("cuda", False): [
        (64, Tile(16, 32, 4, 2), Tile(16, 32, 4, 2, 32)),
        (128, Tile(16, 32, 4, 2, 32), Tile(16, 32, 4, 2, 16)),
        (256, Tile(16, 16, 2, 1, 32), Tile(16, 32, 8, 1, 16)),
    ],
    ("sm_90", False): [
        (64, Tile(16, 32, 4, 2), Tile(16, 32, 4, 2, 32)),
        (128, Tile(16, 32, 4, 2, 32), Tile(16, 32, 4, 1, 16)),
        (256, Tile(16, 16, 2, 1, 32), Tile(16, 32, 8, 1, 16)),
    ],
    ("cdna", True): [
        (128, Tile(32, 64, 4, 2), Tile(32, 32, 4, 1)),
        (256, Tile(32, 32, 4, 1), Tile(32, 32, 4, 1)),
        (512, Tile(32, 32, 4, 1), Tile(16, 16, 4, 1)),
    ],
    ("cdna", False): [
        (128, Tile(32, 32, 4, 1), Tile(32, 32, 4, 1)),
        (256, Tile(32, 32, 4, 1), Tile(16, 16, 4, 1)),
    ],
    ("rdna", True): [
        (128, Tile(16, 16, 4, 1), Tile(16, 16, 8, 1)),
    ],
}
# Precision of fp32 products, and of products with 0/1 matrices. AMD's CDNA multiplies fp32 as it is.
PRECISIONS = {"cuda": ("tf32x3", "tf32x3"), "cdna": ("ieee", "ieee"), "rdna": ("bf16x6", "bf16x6")}
WIDEST_EXACT = 128  # on CUDA wider fp32 vectors are multiplied as one tf32 product: three would spill


def kind_of(arch: str) -> str | None:
    """Return "cuda", "cdna" or "rdna" for "sm_80", "gfx942", ...; None for what has no matrix units."""
    if arch.startswith("sm_"):
        return "cuda" if int(arch[3:]) >= 80 else None
    if arch.startswith(("gfx11", "gfx12")):
        return "rdna"
    return "cdna" if arch.startswith(("gfx90a", "gfx94", "gfx95")) else None


def arch_of(device: torch.device) -> str:
    """Return the name of a GPU's architecture; the interpreter's CPU stands for an A100."""
    if device.type != "cuda":
        return "sm_80"
    if torch.version.hip is not None:
        return str(torch.cuda.get_device_properties(device).gcnArchName).split(":")[0]
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


def padded(size: int) -> int:
    """Sides of Triton blocks are powers of two, and of matrix products at least 16."""
    return max(16, 1 << (size - 1).bit_length())


def _rows(half: bool, arch: str) -> list[tuple[int, Tile, Tile]]:
    return TABLE.get((arch, half)) or TABLE.get((kind_of(arch) or "", half), [])


def widest(half: bool, arch: str) -> int:
    """Return the largest dim for which there are tile sizes; 0 if there are none."""
    rows = _rows(half, arch)
    return rows[-1][0] if rows else 0


def plan(dim: int, half: bool, arch: str) -> Plan:
    """Return how vectors [rows, dim] are treated; dim is at most `widest`."""
    kind, width = kind_of(arch) or "", padded(dim)
    _, forward, gradient = next(row for row in _rows(half, arch) if width <= row[0])
    precision, sum_precision = PRECISIONS[kind]
    if kind == "cuda" and (width > WIDEST_EXACT or torch.get_float32_matmul_precision() != "highest"):
        precision = "tf32"
    return Plan(width, half, forward, gradient, precision, sum_precision)
