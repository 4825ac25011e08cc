"""Where the memory of a run goes, in bytes: measured, not estimated."""

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn


@contextmanager
def saved_activations(parameters: nn.Module) -> Iterator[list[int]]:
    """Counts what autograd keeps for the backward pass inside the block: one number, bytes, in the yielded list.

    Parameters are counted elsewhere, and a storage that several operations keep is counted once.
    """
    own = {p.untyped_storage().data_ptr() for p in (*parameters.parameters(), *parameters.buffers())}
    kept: dict[int, int] = {}
    total = [0]

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield total
    total[0] = sum(kept.values())


def optimizer_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of the optimizer's state."""
    tensors = (t for state in optimizer.state.values() for t in state.values() if isinstance(t, Tensor))
    return sum(t.numel() * t.element_size() for t in tensors)


def process_peak(device: torch.device) -> int:
    """The highest use so far: of the CUDA allocator, or of the process's resident memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        # Not getrusage: a process started by a larger one inherits that one's peak there.
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024
    except (OSError, IndexError):
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
