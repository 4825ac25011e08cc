"""Which back end runs: by request, by the environment variable NNCSL_KERNELS, or by device and size."""

import importlib.util
import os

import torch
from torch import Tensor

from .blockwise import KEEP_LIMIT
from .blockwise.block_loop import COLDEST_WITHOUT_MAXIMUM

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
    """The usable ones of ("triton", "blockwise", "reference") on this machine, best first."""
    triton = _triton_installed() and (_interpreting() or _tensor_cores())
    return NAMES if triton else NAMES[1:]


def needs_grad(x: Tensor) -> bool:
    return torch.is_grad_enabled() and x.requires_grad


def keeps(queries: Tensor, supports: Tensor, temperature: float) -> bool:
    """Whether the blockwise back end keeps its exponentials for the backward: only for small problems."""
    small = queries.shape[0] * supports.shape[0] <= KEEP_LIMIT and temperature >= COLDEST_WITHOUT_MAXIMUM
    return small and (needs_grad(queries) or needs_grad(supports))


def triton_refuses(*tensors: Tensor) -> str | None:
    """Why the Triton back end can't take these vectors or labels; None if it can."""
    *vectors, labels = tensors
    if labels.is_floating_point():
        return "labels of shape [K, C]"
    for x in vectors:
        if x.dtype == torch.float64:
            return "float64"
        if x.shape[1] % 16 or x.shape[1] > 512:
            return f"dim {x.shape[1]} (it takes multiples of 16 up to 512)"
    device = vectors[0].device
    if not (device.type == "cuda" and _tensor_cores(device)) and not (device.type == "cpu" and _interpreting()):
        return f"tensors on {device}"
    return None if _triton_installed() else "a machine without triton"


def requested(backend: str) -> str:
    """The argument, or what the environment says if it is "auto"."""
    wanted = backend if backend != "auto" else os.environ.get(ENVIRONMENT, "auto")
    if wanted not in ("auto", *NAMES):
        source = "backend" if backend != "auto" else f"the environment variable {ENVIRONMENT}"
        raise ValueError(f"{source} must be one of {('auto', *NAMES)}, got {wanted!r}")
    return wanted


def choose(backend: str, *tensors: Tensor, num_classes: int, temperature: float) -> str:
    """The back end for these vectors (queries, supports, ...) and labels (the last tensor)."""
    wanted = requested(backend)
    if wanted in ("blockwise", "reference"):
        return wanted
    queries, supports = tensors[0], tensors[1]
    if wanted == "auto" and queries.device.type == "cpu":
        (n, dim), k = queries.shape, supports.shape[0]
        warm = temperature >= COLDEST_WITHOUT_MAXIMUM
        return "reference" if warm and n * (k + dim) < PLAIN_LIMIT and num_classes < PLAIN_LIMIT else "blockwise"
    refusal = triton_refuses(*tensors)
    if wanted == "triton":
        if refusal is not None:
            raise ValueError(f"backend='triton' can't take {refusal}: use 'blockwise' or 'auto'")
        return wanted
    return "triton" if refusal is None else "blockwise"
