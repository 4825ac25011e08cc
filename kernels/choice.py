"""Which back end runs: by request, by the environment variable NNCSL_KERNELS, or by device and size."""

import importlib.util
import os

import torch

from .blockwise import KEEP_LIMIT
from .operators import transformed
from .problem import Problem
from .targets import arch_of, kind_of, widest

NAMES = ("triton", "blockwise", "reference")
CHOICES = ("auto", *NAMES)
PLAIN_LIMIT = 1 << 15  # numbers in queries and similarities below which a CPU is busy only with starting operations
ENVIRONMENT = "NNCSL_KERNELS"


def _triton_installed() -> bool:
    return importlib.util.find_spec("triton") is not None


def _interpreting() -> bool:
    """Triton's interpreter runs kernels on CPU tensors: for tests, never chosen by itself."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def _matrix_units() -> bool:
    """Return whether there is a GPU for which the Triton kernels have tile sizes."""
    return torch.cuda.is_available() and kind_of(arch_of(torch.device("cuda"))) is not None


def backends() -> tuple[str, ...]:
    """Return the usable ones of ("triton", "blockwise", "reference") on this machine, best first."""
    triton = _triton_installed() and (_interpreting() or _matrix_units())
    return NAMES if triton else NAMES[1:]


def keeps(problem: Problem) -> bool:
    """Return whether the blockwise back end keeps its exponentials for the backward: only for small problems."""
    small = problem.queries.shape[0] * problem.supports.shape[0] <= KEEP_LIMIT and not problem.cold and not problem.log
    return small and any(problem.needs_grad())


def device_refuses(device: torch.device) -> str | None:
    """Return why no Triton kernel runs on a device; None if they do."""
    if device.type != "cuda" and not (device.type == "cpu" and _interpreting()):
        return f"tensors on {device}"
    arch = arch_of(device)
    if kind_of(arch) is None:
        return f"a GPU without matrix units ({arch})"
    return None if _triton_installed() else "a machine without triton"


def triton_refuses(*problems: Problem) -> str | None:
    """Return why the Triton back end can't take these; None if it can."""
    device = problems[0].device
    if problems[0].labels.is_floating_point():
        return "labels of shape [K, C]"
    refusal = device_refuses(device)
    if refusal is not None:
        return refusal
    arch = arch_of(device)
    for problem in problems:
        dim, half = problem.queries.shape[1], problem.half
        if torch.float64 in (problem.queries.dtype, problem.supports.dtype):
            return "float64"
        most = widest(half, arch)
        if not most:
            return f"float32 on {arch}"
        if dim % 16 or dim > most:
            return f"dim {dim} (it takes multiples of 16 up to {most})"
    return None


def requested(backend: str) -> str:
    """Return the argument, or what the environment says if it is "auto"."""
    wanted = backend if backend != "auto" else os.environ.get(ENVIRONMENT, "auto")
    if wanted not in CHOICES:
        source = "backend" if backend != "auto" else f"the environment variable {ENVIRONMENT}"
        raise ValueError(f"{source} must be one of {CHOICES}, got {wanted!r}")
    return wanted


def choose(backend: str, problem: Problem, *teacher: Problem) -> str:
    """Return the name of the back end that runs this problem (and its teacher's)."""
    wanted = requested(backend)
    if wanted in ("blockwise", "reference"):
        return wanted
    if wanted == "auto" and problem.device.type == "cpu":
        (n, dim), k = problem.queries.shape, problem.supports.shape[0]
        small = n * (k + dim) < PLAIN_LIMIT and problem.num_classes < PLAIN_LIMIT and not transformed()
        return "reference" if small and not problem.cold and not problem.log else "blockwise"
    refusal = triton_refuses(problem, *teacher)
    if wanted == "triton":
        if refusal is not None:
            raise ValueError(f"backend='triton' can't take {refusal}: use 'blockwise' or 'auto'")
        return wanted
    return "triton" if refusal is None else "blockwise"
