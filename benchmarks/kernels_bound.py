"""How near the peak of matrix products a kernel could come, computed from its tiles: no GPU is timed.

Counted per pair of a query and a support: products needed, products done (again for every tile of classes, several for
one at fp32, twice by redundant warps, for rows beyond the last support), and exponentials, which other units compute
at the same time. The slower of the two is the bound. Memory and launches are left out.
"""

from typing import Any

SUPPORTS, CLASSES = 600, 10  # of the problem that the bound is computed for
# Per clock and multiprocessor: floating-point operations of half-precision and of fp32 products, and exponentials.
# From the data sheets: A100, H100, B200, MI300X.
RATES = {"sm_80": (2048, 1024, 16), "sm_90": (4096, 2048, 16), "sm_100": (8192, 4096, 16), "gfx942": (2048, 256, 16)}
PASSES = {"tf32x3": 3, "tf32": 1, "ieee": 1, "bf16x6": 6}  # hardware products per fp32 product


def useful_rows(supports: int) -> float:
    """Return the share of supports in launched tiles of so many."""
    return SUPPORTS / (-(-SUPPORTS // supports) * supports)


def redundancy(queries: int, supports: int, warps: int, amd: bool) -> float:
    """Return how many warps compute the same numbers. A matrix instruction gives 16 x 8 of them, on AMD 16 x 16."""
    return max(1.0, warps / ((queries // 16) * (supports // (16 if amd else 8))))


def bound(kernel: str, target: str, dim: int, constants: dict[str, Any], repeated: float) -> float | None:
    """Return the share of peak, 0 to 1; None where the rates are not known. `repeated`: the redundancy."""
    if target not in RATES:
        return None
    half, width = constants["HALF"], constants["DP"]
    half_rate, fp32_rate, exponentials_rate = RATES[target]
    rate = half_rate if half else fp32_rate
    passes = 1 if half else PASSES[constants["PRECISION"]]
    class_tiles, needed = -(-CLASSES // constants.get("BC", CLASSES)), 2.0 * dim
    if kernel.startswith("gradient"):  # logits again, then both gradients; in half precision each of two terms
        needed *= 3
        done, exponentials = 2.0 * width * ((1 + 2 * 2) if half else 3 * passes), 1.0
    elif kernel == "class_parts":
        done, exponentials = 2.0 * width * passes, 1.0
    else:  # totals first; then weights and their product with the 0/1 tile, which is of fp32
        sums = 2.0 * constants["BC"] * PASSES[constants["SUM_PRECISION"]] * rate / fp32_rate
        done, exponentials = 2.0 * width * passes * (1 + class_tiles) + sums * class_tiles, 1.0 + class_tiles
    wasted = 1 / useful_rows(constants["BK"])
    return needed / rate / max(done * repeated * wasted / rate, exponentials * wasted / exponentials_rate)
