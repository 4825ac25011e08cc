"""Soft nearest neighbours on GPUs: the host side of the class-segmented Triton kernels."""

# The arguments of Triton kernels have no Python types.
# mypy: disable-error-code="no-untyped-def"

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import triton_tiles as tiles_of
from .problem import Forward, Problem
from .reference import EPS
from .triton_tiles import load_by_class, log_total

LOG2_E = math.log2(math.e)
PARTIALS = 16  # a query's gradient is summed in at most this many parts, each by one program, then over the parts


@dataclass(frozen=True)
class Shape:
    """Tile sizes for one dim and type, chosen for no register spills: see `nncsl.benchmarks.kernels --static`."""

    dim: int
    padded: int
    queries: int
    supports: int
    warps: int
    precision: str

    @property
    def constants(self) -> dict[str, int | str]:
        return {
            "D": self.dim,
            "DP": self.padded,
            "BN": self.queries,
            "BK": self.supports,
            "PRECISION": self.precision,
        }


def padded(size: int) -> int:
    """Sides of Triton blocks are powers of two, and of matrix products at least 16."""
    return max(16, triton.next_power_of_2(size))


def tile_shape(dim: int, half: bool, hip: bool | None = None) -> Shape:
    """Half-precision vectors are multiplied as fp16. fp32 vectors up to dim 128 are multiplied as three tf32
    products (plain fp32 on AMD), wider ones, or where torch was told that this is precise enough, as one."""
    width = padded(dim)
    hip = torch.version.hip is not None if hip is None else hip
    warps = 8 if width == 512 and not hip else 4
    if half:
        size = {256: 32, 512: 16}.get(width, 64)
        return Shape(dim, width, size, size, warps, "tf32")
    exact = width <= 128 and torch.get_float32_matmul_precision() == "highest"
    precision = ("ieee" if hip else "tf32x3") if exact else "tf32"
    size = 32 if width <= 64 else 16
    return Shape(dim, width, size, size, warps, precision)


@dataclass(frozen=True)
class Tiles:
    """Supports sorted by class and cut into tiles; the number of tiles is an upper bound, so nothing waits."""

    order: Tensor  # [K] int64: position in the sorted supports -> support; unused supports come last
    used: Tensor  # [1] int64: how many are used
    table: Tensor  # [T, 3] int32: class, first and last (exclusive) position; empty tiles have first == last
    ptr: Tensor  # [C + 1] int32: first tile of each class

    def __len__(self) -> int:
        return self.table.shape[0]


def is_half(*problems: Problem) -> bool:
    """Return whether no vectors are fp32."""
    return all(x.dtype != torch.float32 for problem in problems for x in (problem.queries, problem.supports))


def cut(problem: Problem, size: int) -> Tiles:
    labels, mask, num_classes = problem.labels, problem.mask, problem.num_classes
    key = labels if mask is None else torch.where(mask, labels, num_classes)
    sorted_key, order = torch.sort(key, stable=True)
    classes = torch.arange(num_classes + 1, device=labels.device)
    first = torch.searchsorted(sorted_key, classes)
    counts = first.diff().add_(size - 1).div_(size, rounding_mode="floor")
    ptr = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    most = min(num_classes, labels.shape[0]) + triton.cdiv(labels.shape[0], size)
    tile = torch.arange(most, device=labels.device)
    klass = torch.searchsorted(ptr[1:], tile, right=True).clamp_(max=num_classes - 1)
    start = first[klass] + (tile - ptr[klass]) * size
    stop = torch.minimum(start + size, first[klass + 1])
    start = torch.minimum(start, stop)  # tiles beyond the last one
    table = torch.stack([klass, start, stop], dim=1).to(torch.int32)
    return Tiles(order, first[-1:], table, ptr.to(torch.int32))


def unit_rows(x: Tensor, order: Tensor, dtype: torch.dtype) -> Tensor:
    rows, dim = x.shape
    out = x.new_empty(rows, dim, dtype=dtype)
    size = max(1, 2048 // padded(dim))
    grid = (triton.cdiv(rows, size),)
    tiles_of.units_kernel[grid](x.contiguous(), order, out, rows, D=dim, DP=padded(dim), BR=size, EPS=EPS)
    return out


class Segments:
    """One side (student or teacher): queries and sorted supports as unit vectors, and the kernels over them."""

    def __init__(self, problem: Problem, like: "Segments | None" = None) -> None:
        """`like`: the other side, whose tiles are taken if they have the right size."""
        queries, supports = problem.queries, problem.supports
        dtype = torch.float16 if is_half(problem) else torch.float32
        self.shape: Shape = tile_shape(queries.shape[1], is_half(problem))
        if like is not None and like.shape.supports == self.shape.supports:
            self.tiles: Tiles = like.tiles
        else:
            self.tiles = cut(problem, self.shape.supports)
        self.raw_queries, self.raw_supports = queries.contiguous(), supports.contiguous()
        self.everything = torch.arange(queries.shape[0], device=queries.device)
        self.queries = unit_rows(queries, self.everything, dtype)
        self.supports = unit_rows(supports, self.tiles.order, dtype)
        self.temperature, self.cold = problem.temperature, problem.cold
        self.n = queries.shape[0]

    def log_mass(self) -> Tensor:
        """Return log2 of the sum of exponentials per class: [C, N]."""
        tiles, shape = self.tiles, self.shape
        blocks, classes = triton.cdiv(self.n, shape.queries), tiles.ptr.shape[0] - 1
        group = max(1, min(16, len(tiles) * blocks // 512))
        sums = torch.empty(len(tiles), self.n, device=self.queries.device)
        tiles_of.tile_sums_kernel[(blocks, triton.cdiv(len(tiles), group))](
            self.queries, self.supports, tiles.table, sums, self.n, len(tiles), LOG2_E / self.temperature,
            GROUP=group, RUNNING=self.cold, **shape.constants, num_warps=shape.warps,
        )  # fmt: skip
        out = torch.empty(classes, self.n, device=self.queries.device)
        grid = (triton.cdiv(self.n, 64), triton.cdiv(classes, 16))
        tiles_of.class_sums_kernel[grid](sums, tiles.ptr, out, self.n, classes, BN=64, BC=16)
        return out

    def gradients(
        self, log_mass: Tensor, weights: Tensor, peak: Tensor, factor: float, need_queries: bool, need_supports: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return factor * peak * the gradients [N, D] and [K, D] that belong to the weights [C, N]."""
        return (
            self.query_grad(log_mass, weights, peak, factor) if need_queries else None,
            self.support_grad(log_mass, weights, peak, factor) if need_supports else None,
        )

    def query_grad(self, log_mass: Tensor, weights: Tensor, peak: Tensor, factor: float) -> Tensor:
        tiles, shape = self.tiles, self.shape
        group = triton.cdiv(len(tiles), PARTIALS)
        parts = triton.cdiv(len(tiles), group)
        partials = torch.empty(parts, self.n, shape.dim, device=self.queries.device)
        tiles_of.query_grad_kernel[(triton.cdiv(self.n, shape.queries), parts)](
            self.queries, self.supports, tiles.table, log_mass, weights, partials, self.n, len(tiles),
            LOG2_E / self.temperature, GROUP=group, **shape.constants, num_warps=shape.warps,
        )  # fmt: skip
        used = torch.full((1,), self.n, device=self.queries.device)
        return through_units(self.raw_queries, self.everything, partials, used, peak, factor / self.temperature)

    def support_grad(self, log_mass: Tensor, weights: Tensor, peak: Tensor, factor: float) -> Tensor:
        tiles, shape = self.tiles, self.shape
        grad = torch.empty(1, *self.supports.shape, device=self.queries.device)
        tiles_of.support_grad_kernel[(len(tiles),)](
            self.queries, self.supports, tiles.table, log_mass, weights, grad, self.n, LOG2_E / self.temperature,
            **shape.constants, num_warps=shape.warps,
        )  # fmt: skip
        return through_units(self.raw_supports, tiles.order, grad, tiles.used, peak, factor / self.temperature)


def through_units(source: Tensor, order: Tensor, partials: Tensor, used: Tensor, peak: Tensor, factor: float) -> Tensor:
    """Return the gradient of the vectors, fp32, given partial gradients [P, rows, D] of unit vectors."""
    rows, dim = source.shape
    out = torch.empty(rows, dim, device=source.device)
    size = max(1, 2048 // padded(dim))
    tiles_of.through_units_kernel[(triton.cdiv(rows, size),)](
        source, order, partials, out, used, peak, rows, partials.shape[0], factor,
        D=dim, DP=padded(dim), BR=size, EPS=EPS,
    )  # fmt: skip
    return out


@triton.jit
def probabilities_kernel(
    log_mass, out, n_queries, n_classes, keep, uniform, BN: tl.constexpr, BC: tl.constexpr
):  # fmt: skip
    """out[query, class] = keep * probability + uniform"""
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    total = log_total(log_mass, n, n_classes, n_queries, BN, BC)
    for c0 in range(0, n_classes, BC):
        c = c0 + tl.arange(0, BC)
        mass = load_by_class(log_mass, c, n, n_classes, n_queries, -float("inf"))
        where = out + n.to(tl.int64)[None, :] * n_classes + c[:, None]
        valid = (c < n_classes)[:, None] & (n < n_queries)[None, :]
        tl.store(where, keep * tl.exp2(mass - total[None, :]) + uniform, mask=valid)


@triton.jit
def weights_kernel(
    log_mass, grad, peak, out, n_queries, n_classes, keep, BN: tl.constexpr, BC: tl.constexpr
):  # fmt: skip
    """out[class, query] = keep * o (g - <g, o>) / peak: what a support's share of its class is multiplied by."""
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    total = log_total(log_mass, n, n_classes, n_queries, BN, BC)
    scale = keep / tl.load(peak)
    mean = tl.zeros((BN,), tl.float32)
    for c0 in range(0, n_classes, BC):
        c = c0 + tl.arange(0, BC)
        valid = (c < n_classes)[:, None] & (n < n_queries)[None, :]
        mass = load_by_class(log_mass, c, n, n_classes, n_queries, -float("inf"))
        g = tl.load(grad + n.to(tl.int64)[None, :] * n_classes + c[:, None], mask=valid, other=0.0)
        mean += tl.sum(g * tl.exp2(mass - total[None, :]), axis=0)
    for c0 in range(0, n_classes, BC):
        c = c0 + tl.arange(0, BC)
        valid = (c < n_classes)[:, None] & (n < n_queries)[None, :]
        mass = load_by_class(log_mass, c, n, n_classes, n_queries, -float("inf"))
        g = tl.load(grad + n.to(tl.int64)[None, :] * n_classes + c[:, None], mask=valid, other=0.0)
        weight = tl.exp2(mass - total[None, :]) * (g - mean[None, :]) * scale
        tl.store(out + c.to(tl.int64)[:, None] * n_queries + n[None, :], weight, mask=valid)


def snn_forward(problem: Problem, keep: bool) -> Forward:
    """Return the probabilities [N, C] and the state, log2 of the sums per class [C, N]; nothing is kept."""
    log_mass = Segments(problem).log_mass()
    n, classes, smoothing = problem.queries.shape[0], problem.num_classes, problem.smoothing
    out = torch.empty(n, classes, device=problem.device)
    grid = (triton.cdiv(n, 32),)
    probabilities_kernel[grid](log_mass, out, n, classes, 1 - smoothing, smoothing / classes, BN=32, BC=32)
    return Forward(out, log_mass, out.new_empty(0, 0))


def snn_backward(
    problem: Problem, forward: Forward, keep_: bool, grad: Tensor, need_queries: bool, need_supports: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Return gradients [N, D] and [K, D], fp32. `grad` [N, C] is brought to size 1 first, for fp16 products."""
    segments, log_mass = Segments(problem), forward.state
    n, keep = problem.queries.shape[0], 1 - problem.smoothing
    peak = grad.abs().amax().clamp_min_(torch.finfo(torch.float32).tiny)
    weights = torch.empty_like(log_mass)
    grid = (triton.cdiv(n, 32),)
    weights_kernel[grid](log_mass, grad.contiguous(), peak, weights, n, problem.num_classes, keep, BN=32, BC=32)
    return segments.gradients(log_mass, weights, peak, 1.0, need_queries, need_supports)
