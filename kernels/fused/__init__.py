"""Soft nearest neighbours on GPUs, in Triton: the host side. See docs/kernels.md.

Few supports (`SMALL`) take one launch forward and two backward, without a sort. Sizes are run-time arguments: a
kernel is compiled once per dim and type, however many supports, queries and classes there are.
"""

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from ..problem import Forward, Problem
from ..targets import Plan, Tile
from . import gradient, large, rows, small
from .given import Given, empty_state, forward_constants, given, new

SMALL = 640  # supports up to which nothing is sorted
PROGRAMS = 128  # a loop over many supports is split until there are about as many programs
QUERIES_AT_ONCE = 2048  # of a gradient with many supports
ROW_CLASSES = 64  # at a time, of kernels that see probabilities only
PARTS_BYTES = 1 << 26  # room for the parts of support gradients


class Order(NamedTuple):
    """Supports sorted by class; those that are not used come last."""

    order: Tensor  # [K] position -> support
    classes: Tensor  # [K] int32 class at each position, C for those that are not used
    first: Tensor  # [C + 1] first position of each class; the last entry is how many are used


def sort(problem: Problem) -> Order:
    """A label that is no class counts as the nearest one: its support's length is NaN, and so is the result."""
    labels, mask, classes = problem.labels, problem.mask, problem.num_classes
    key = labels.clamp(0, classes - 1)
    if problem.in_order:
        order = torch.arange(len(labels), device=labels.device)
    else:
        key, order = torch.sort(key if mask is None else torch.where(mask, key, classes), stable=True)
    first = torch.searchsorted(key, torch.arange(classes + 1, device=labels.device, dtype=key.dtype))
    return Order(order, key.to(torch.int32), first)


def splits_of(queries: int, supports: int, tile: Tile) -> tuple[int, int]:
    """Return into how many ranges the supports are split, and their size."""
    wanted = max(1, PROGRAMS // max(1, triton.cdiv(queries, tile.queries)))
    size = triton.cdiv(triton.cdiv(supports, wanted), tile.supports) * tile.supports
    return triton.cdiv(supports, size), size


def probabilities(x: Given, kind: str, order: Order | None) -> tuple[Tensor, Tensor]:
    """Return probabilities [N, C] in the form `kind`, and the state."""
    (n, k, c), state = x.sizes, empty_state(x)
    out, tile = new(x, n, c), x.plan.forward
    if not n:
        return out, state
    if order is None:
        small.small_snn_kernel[(triton.cdiv(n, tile.queries),)](
            x.queries, x.supports, x.problem.labels, x.mask, state, out, n, k, c, x.levels, x.scale, *x.smoothed,
            KIND=kind, **forward_constants(x),
        )  # fmt: skip
        return out, state
    size = max(1, 2048 // x.plan.width)
    for source, offset, labeled in ((x.queries, 2 * n, False), (x.supports, 3 * n, True)):
        large.inverse_lengths_kernel[(triton.cdiv(len(source), size),)](
            source, x.problem.labels, x.mask, state, offset, len(source), c,
            **x.vectors, BR=size, MASKED=x.flags["MASKED"], LABELED=labeled,
        )  # fmt: skip
    splits, split_size = splits_of(n, k, tile)
    masses, tops = new(x, c + splits, n), new(x, c + splits, n)
    constants = {name: value for name, value in forward_constants(x).items()
                 if name not in ("MASKED", "SMOOTH", "BC", "SUM_PRECISION", "EPS")}  # fmt: skip
    large.class_parts_kernel[(triton.cdiv(n, tile.queries), splits)](
        x.queries, x.supports, *order, state, masses, tops, n, c, split_size, x.scale, **constants
    )
    large.combine_kernel[(triton.cdiv(n, 32),)](
        masses, tops, order.first, state, out, n, c, split_size, *x.smoothed,
        BN=32, BC=32, KIND=kind, SMOOTH=x.flags["SMOOTH"],
    )  # fmt: skip
    return out, state


class Upstream(NamedTuple):
    """Where the gradient of outputs comes from: see gradient.upstream_of."""

    source: str  # "given", "teacher" or "terms"
    grads: Tensor  # [N, C] or [2, N, C]
    up: tuple[Tensor, ...]  # gradients of losses
    stride: int = 0  # of `up`: 1 if there is one for each query
    factor: float = 1.0  # of `up`


def gradients(
    x: Given, state: Tensor, stored: Tensor, form: str, upstream: Upstream,
    order: Order | None, need_queries: bool, need_supports: bool,
) -> tuple[Tensor | None, Tensor | None]:  # fmt: skip
    """Return gradients [N, D] and [K, D] in the types of the vectors; `stored` are probabilities in some `form`."""
    (n, k, c), tile, dim = x.sizes, x.plan.gradient, x.queries.shape[1]
    dq = torch.empty_like(x.queries) if need_queries else None
    if not n:
        return dq, torch.zeros_like(x.supports) if need_supports else None
    at_once = n if order is None else min(n, QUERIES_AT_ONCE)
    several = at_once < n
    ds = torch.empty_like(x.supports, dtype=torch.float32 if several else None) if need_supports else None
    programs = triton.cdiv(at_once, tile.queries)
    chunk = k
    if order is not None:
        chunk = min(k, max(1, PARTS_BYTES // (4 * dim * programs * tile.supports)) * tile.supports)
    splits, split_size = (1, chunk) if order is None else splits_of(at_once, chunk, tile)
    finish = splits == 1 and chunk == k
    query_parts = dq if dq is None or finish else new(x, splits, n, dim)
    support_parts = None if ds is None else new(x, programs, chunk, dim)
    places = (x.problem.labels,) * 2 if order is None else (order.order, order.first)
    keep, uniform = x.smoothed
    for first_query in range(0, n, at_once):
        last_query = min(n, first_query + at_once)
        programs = triton.cdiv(last_query - first_query, tile.queries)
        for first in range(0, k, chunk):
            last = min(k, first + chunk)
            gradient.gradient_kernel[(programs, splits)](
                x.queries, x.supports, x.problem.labels, x.mask, *places, state, stored, upstream.grads, *upstream.up,
                x.queries if query_parts is None else query_parts, x.queries if ds is None else support_parts,
                n, c, first_query, last_query, first, last, split_size, upstream.stride,
                x.scale, 1 / x.problem.temperature, upstream.factor, keep, uniform,
                **x.vectors, **x.flags, BN=tile.queries, BK=tile.supports, BC=tile.classes, HALF=x.plan.half,
                SORTED=order is not None, STORED=form, SOURCE=upstream.source, FINISH=finish,
                NEED_Q=need_queries, NEED_S=need_supports, PRECISION=x.plan.precision,
                num_warps=tile.warps, num_stages=tile.stages,
            )  # fmt: skip
            if ds is not None and support_parts is not None:
                _finish(x, x.supports, order, state, 3 * n, support_parts, ds, first, last, programs, first_query > 0)
    if dq is not None and query_parts is not None and not finish:
        everyone = x._replace(problem=x.problem._replace(mask=None))
        _finish(everyone, x.queries, None, state, 2 * n, query_parts, dq, 0, n, splits, False)
    return dq, ds


def _finish(
    x: Given, source: Tensor, order: Order | None, state: Tensor, offset: int, parts: Tensor, out: Tensor,
    first: int, last: int, count: int, add: bool,
) -> None:  # fmt: skip
    """Add up parts [count, last - first, D] of gradients of unit vectors into `out`."""
    size = max(1, 2048 // x.plan.width)
    gradient.finish_kernel[(triton.cdiv(last - first, size),)](
        source, x.mask, x.mask if order is None else order.order, state, parts, out, offset,
        first, last - first, count, int(add), 1 / x.problem.temperature,
        **x.vectors, BR=size, MASKED=x.flags["MASKED"], SORTED=order is not None,
    )  # fmt: skip


def order_of(problem: Problem) -> Order | None:
    return None if problem.supports.shape[0] <= SMALL else sort(problem)


def snn_output(problem: Problem) -> Tensor:
    """Return probabilities [N, C] or their logarithms; the state is written with them, and dropped."""
    return snn_forward(problem, keep=False).output


def snn_forward(problem: Problem, keep: bool) -> Forward:
    """Return probabilities [N, C] or their logarithms, and the state; nothing is kept."""
    out, state = probabilities(given(problem), "log" if problem.log else "probability", order_of(problem))
    return Forward(out, state, out.new_empty(0, 0))


def snn_backward(
    problem: Problem, forward: Forward, keep: bool, grad: Tensor, need_queries: bool, need_supports: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Return gradients [N, D] and [K, D]."""
    form, grad = "log" if problem.log else "probability", grad.contiguous()
    return gradients(
        given(problem), forward.state, forward.output, form, Upstream("given", grad, (grad, grad)), order_of(problem),
        need_queries, need_supports,
    )  # fmt: skip


def nnd_forward(student: Problem, teacher: Problem, mean: bool) -> tuple[Tensor, ...]:
    """Return the loss (of each query, or their mean), and for the backward both sides' probabilities and the state."""
    x, y, order = given(student), given(teacher), order_of(student)
    n, k, c = x.sizes
    losses = new(x, n)
    if order is None:
        ours, theirs, state, tile = new(x, n, c), new(x, n, c), empty_state(x), smaller(x.plan, y.plan)
        constants = forward_constants(x._replace(plan=x.plan._replace(forward=tile)))
        small.small_nnd_kernel[(triton.cdiv(n, tile.queries),)](
            x.queries, x.supports, y.queries, y.supports, x.problem.labels, x.mask, state, ours, theirs, losses,
            n, k, c, max(x.levels, y.levels), x.scale, *x.smoothed,
            TD=y.queries.shape[1], TDP=y.plan.width, TEACHER_HALF=y.plan.half, TEACHER_PRECISION=y.plan.precision,
            **constants,
        )  # fmt: skip
    else:
        (ours, state), (theirs, _) = probabilities(x, "mixed", order), probabilities(y, "mixed", order)
        rows.distill_kernel[(triton.cdiv(n, 32),)](
            ours, theirs, losses, n, c, *x.smoothed, SMOOTH=x.flags["SMOOTH"], BN=32, BC=ROW_CLASSES
        )
    return losses.mean() if mean else losses, ours, theirs, state


def smaller(one: Plan, two: Plan) -> Tile:
    """Return the tile that fits both."""
    return min(one.forward, two.forward, key=lambda tile: (tile.queries * tile.supports, -tile.warps))


def nnd_backward(
    problem: Problem, saved: tuple[Tensor, ...], grad: Tensor, need_queries: bool, need_supports: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Return gradients [N, D] and [K, D]. grad: of the mean loss, or of each query's."""
    ours, theirs, state = saved
    mean = grad.dim() == 0
    upstream = Upstream("teacher", theirs, (grad.contiguous(), grad), 0 if mean else 1, 1 / len(ours) if mean else 1.0)
    order = order_of(problem)
    return gradients(given(problem), state, ours, "mixed", upstream, order, need_queries, need_supports)


def loss_forward(problem: Problem, views: int, power: float, need: bool) -> tuple[Tensor, ...]:
    """Return cross-entropy, minus entropy, predictions [views * images], and for the backward mixed
    probabilities, gradients [2, N, C] of both in the logarithms (empty if not needed), and the state."""
    x, order = given(problem), order_of(problem)
    n, k, c = x.sizes
    images = n // views
    room = x.plan.forward.queries // (1 << (views - 1).bit_length())  # images whose views fill a tile
    per_program = room if order is None and room else 8
    programs = triton.cdiv(images, per_program)
    results = torch.empty((), device=problem.device), torch.empty((), device=problem.device)
    predictions = new(x, n, dtype=torch.int64)
    means, parts, sharpness = new(x, programs, c), new(x, programs), new(x, n)
    pulls = new(x, 2, n, c) if need else new(x, 0)
    constants: dict[str, Any] = {"SMOOTH": x.flags["SMOOTH"], "NEED": need, "BC": ROW_CLASSES}
    if order is None and room:
        mixed, state = new(x, n, c), empty_state(x)
        small.small_objective_kernel[(programs,)](
            x.queries, x.supports, x.problem.labels, x.mask, state, mixed, sharpness, predictions, pulls, means, parts,
            images, views, k, c, x.levels, x.scale, *x.smoothed, power,
            BI=per_program, NEED=need, **forward_constants(x),
        )  # fmt: skip
    else:
        mixed, state = probabilities(x, "mixed", order)
        rows.objective_kernel[(programs,)](
            mixed, sharpness, predictions, pulls, means, parts, images, views, c, *x.smoothed, power,
            BI=per_program, **constants, num_warps=8,
        )  # fmt: skip
    rows.finish_objective_kernel[(triton.cdiv(n, 32) if need else 1,)](
        mixed, sharpness, pulls, means, parts, *results, images, views, c, programs, *x.smoothed, power,
        BN=32, **constants,
    )  # fmt: skip
    return *results, predictions, mixed, pulls, state


def loss_backward(
    problem: Problem, saved: tuple[Tensor, ...], grads: tuple[Tensor, ...], need_queries: bool, need_supports: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Return gradients [N, D] and [K, D]. grads: of cross-entropy and minus entropy."""
    mixed, pulls, state = saved
    upstream = Upstream("terms", pulls, grads)
    return gradients(given(problem), state, mixed, "mixed", upstream, order_of(problem), need_queries, need_supports)
