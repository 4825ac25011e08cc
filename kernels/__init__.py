"""Soft nearest neighbours and their distillation loss, memory-efficient, on CPU and GPU.

    from nncsl.kernels import snn, nnd_loss, snn_loss       # in a checkout `from kernels import ...` too

    probabilities = snn(queries, supports, labels, num_classes=10)          # [N, D], [K, D], [K] -> [N, C]
    loss = nnd_loss(queries, supports, teacher_queries, teacher_supports, labels, num_classes=10)
    cross_entropy, minus_entropy, predictions = snn_loss(views, supports, labels, num_classes=10)

Inputs need not be normalized: similarities are cosines, with torch's `normalize` convention for vectors of
length zero. fp32, fp16 and bf16 are computed and returned in fp32 (also under autocast), fp64 in fp64. NaN and
inf propagate. The functions are differentiable once, in queries and supports only.
"""

from torch import Tensor

from . import checks, choice, ops, reference
from .choice import backends
from .objective import Objective, SnnLoss
from .problem import Problem

__all__ = ["SnnLoss", "backends", "nnd_loss", "snn", "snn_loss"]


def snn(
    queries: Tensor,
    supports: Tensor,
    labels: Tensor,
    *,
    num_classes: int | None = None,
    temperature: float = 0.1,
    smoothing: float = 0.0,
    mask: Tensor | None = None,
    return_log: bool = False,
    backend: str = "auto",
) -> Tensor:
    """Return class probabilities [N, C] of the queries: softmax(cos(queries, supports) / temperature) @ labels.

    queries [N, D], supports [K, D]; labels [K] integers in [0, C), or [K, C] floating class weights.
    num_classes: C; None takes the largest label + 1 (which waits for the device if labels are on a GPU, and
        can't be compiled: pass it there).
    smoothing: a, turns labels y into (1 - a) y + a / C. Without it a class without supports has probability 0.
    mask: [K] bool, True where the support is used; the others have no influence and get gradient 0.
    return_log: return logarithms, right also where a probability is too small for fp32; -inf for probability 0.
    backend: "auto", or one of `backends()`.
    """
    problem = checks.checked_problem(queries, supports, labels, mask, num_classes, temperature, smoothing, return_log)
    return _snn(problem, backend)


def nnd_loss(
    queries: Tensor,
    supports: Tensor,
    teacher_queries: Tensor,
    teacher_supports: Tensor,
    labels: Tensor,
    *,
    num_classes: int | None = None,
    temperature: float = 0.1,
    smoothing: float = 0.0,
    mask: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Return the distillation loss: the mean over queries of -sum_c w'_c log w_c, a scalar.

    w = snn(queries, supports, ...) is the student's view of the supports, w' = snn(teacher_queries,
    teacher_supports, ...) the teacher's, in which nothing is differentiated. Teacher tensors have the shapes
    [N, D'] and [K, D'] (D' may differ from D). A class without supports adds nothing. Other arguments as in `snn`.
    """
    student = checks.checked_problem(queries, supports, labels, mask, num_classes, temperature, smoothing)
    checks.check_teacher(queries, supports, teacher_queries, teacher_supports)
    teacher = student._replace(queries=teacher_queries.detach(), supports=teacher_supports.detach())
    chosen = choice.choose(backend, student, teacher)
    if chosen == "reference":
        checks.check_values(student)
        return ops.without_autocast(reference.nnd_loss)(student, teacher)
    return ops.nnd(student, teacher, chosen, mean=True)


def snn_loss(
    queries: Tensor,
    supports: Tensor,
    labels: Tensor,
    *,
    small_views: int = 2,
    sharpening: float = 0.25,
    num_classes: int | None = None,
    temperature: float = 0.1,
    smoothing: float = 0.0,
    mask: Tensor | None = None,
    backend: str = "auto",
) -> SnnLoss:
    """Return the semi-supervised objective of several views of N images, and the class that each view is taken for.

    queries [(2 + small_views) N, D]: all first large views, all second large views, then all small views of each
    kind. With v = snn(queries, ...) and v sharpened to v^(1 / sharpening), normalized:
    cross_entropy: the mean over views of -sum_c target_c log v_c. Targets are sharpened and not differentiated.
        The large views are each other's target, a small view's is their mean; entries under 1e-4 then count as 0.
    minus_entropy: sum_c m_c log m_c of the mean m over views of sharpened v.
    predictions: int64 [(2 + small_views) N], the most probable class of each view.
    Other arguments as in `snn`.
    """
    if small_views < 0:
        raise ValueError(f"small_views must be >= 0, got {small_views}")
    if not 0 < sharpening <= 1:
        raise ValueError(f"sharpening must be in (0, 1], got {sharpening}")
    checks.check_pair(queries, supports)
    if queries.shape[0] == 0 or queries.shape[0] % (2 + small_views):
        raise ValueError(
            f"queries must have a multiple of {2 + small_views} rows (2 large and {small_views} small views "
            f"of each image), got shape {list(queries.shape)}"
        )
    problem = checks.checked_problem(queries, supports, labels, mask, num_classes, temperature, smoothing)
    if choice.choose(backend, problem) == "triton":
        return SnnLoss(*ops.snn_loss(problem, 2 + small_views, 1 / sharpening, "triton"))
    plain = choice.requested(backend) == "reference"
    if plain or (problem.cold and not problem.smoothing):  # probabilities may be too small for fp32
        log_p = _snn(problem._replace(log=True), backend)
        cross_entropy, minus_entropy = reference.objective(log_p, small_views, 1 / sharpening)
        return SnnLoss(cross_entropy, minus_entropy, predictions=log_p.detach().argmax(dim=1))
    p = _snn(problem, backend)
    cross_entropy, minus_entropy, *_ = Objective.apply(p, small_views, 1 / sharpening, any(problem.needs_grad()))
    return SnnLoss(cross_entropy, minus_entropy, predictions=p.detach().argmax(dim=1))


def _snn(problem: Problem, backend: str) -> Tensor:
    chosen = choice.choose(backend, problem)
    if chosen == "reference":
        checks.check_values(problem)
        return ops.without_autocast(reference.snn)(problem)
    return ops.snn(problem, chosen)
