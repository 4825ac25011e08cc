"""Which back end runs: by request, by the environment variable NNCSL_KERNELS, or by device and size."""

import importlib.util
import os

import torch

from .blockwise import KEEP_LIMIT
from .operators import transformed
from .problem import Problem

NAMES = ("triton", "blockwise", "reference")
PLAIN_LIMIT = 1 << 15  # numbers in queries and similarities below which a CPU is busy only with starting operations
ENVIRONMENT = "NNCSL_KERNELS"


def _triton_installed() -> bool:
    return importlib.util.find_spec("triton") is not None


def _interpreting() -> bool:
    """Triton's interpreter runs kernels on CPU tensors: for tests, never chosen by itself."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def _tensor_cores(device: torch.device | None = None) -> bool:
    if not torch.cuda.is_available():
        return False
    return torch.version.hip is not None or torch.cuda.get_device_capability(device) >= (8, 0)


def backends() -> tuple[str, ...]:
    """Return the usable ones of ("triton", "blockwise", "reference") on this machine, best first."""
    triton = _triton_installed() and (_interpreting() or _tensor_cores())
    return NAMES if triton else NAMES[1:]


def keeps(problem: Problem) -> bool:
    """Return whether the blockwise back end keeps its exponentials for the backward: only for small problems."""
    small = problem.queries.shape[0] * problem.supports.shape[0] <= KEEP_LIMIT and not problem.cold and not problem.log
    return small and any(problem.needs_grad())


def triton_refuses(*problems: Problem) -> str | None:
    """Return why the Triton back end can't take these; None if it can."""
    if problems[0].log:
        return "return_log"
    if problems[0].labels.is_floating_point():
        return "labels of shape [K, C]"
    for x in (x for problem in problems for x in (problem.queries, problem.supports)):
        if x.dtype == torch.float64:
            return "float64"
        if x.shape[1] % 16 or x.shape[1] > 512:
            return f"dim {x.shape[1]} (it takes multiples of 16 up to 512)"
    device = problems[0].device
    if not (device.type == "cuda" and _tensor_cores(device)) and not (device.type == "cpu" and _interpreting()):
        return f"tensors on {device}"
    return None if _triton_installed() else "a machine without triton"


def requested(backend: str) -> str:
    """Return the argument, or what the environment says if it is "auto"."""
    wanted = backend if backend != "auto" else os.environ.get(ENVIRONMENT, "auto")
    if wanted not in ("auto", *NAMES):
        source = "backend" if backend != "auto" else f"the environment variable {ENVIRONMENT}"
        raise ValueError(f"{source} must be one of {('auto', *NAMES)}, got {wanted!r}")
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
