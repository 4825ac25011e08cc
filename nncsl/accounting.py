"""Where the memory of a run goes, in bytes: measured, not estimated."""

import ctypes
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nncsl import networks
from nncsl.data.images import Images
from nncsl.errors import UserError

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_STATUS = Path("/proc/self/status")
_RESET_PEAK = Path("/proc/self/clear_refs")


class Tally:
    """Bytes that are held right now, and the most that were held at once. A storage held twice counts once."""

    def __init__(self) -> None:
        self.peak = 0
        self._now = 0
        self._holders: dict[int, int] = {}

    def hold(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage.data_ptr()
        self._holders[key] = self._holders.get(key, 0) + 1
        if self._holders[key] == 1:
            self._now += storage.nbytes()
            self.peak = max(self.peak, self._now)

    def release(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage.data_ptr()
        self._holders[key] -= 1
        if not self._holders[key]:
            del self._holders[key]
            self._now -= storage.nbytes()


class _Saved:
    """A tensor that autograd keeps; the tally hears when it lets go."""

    def __init__(self, tensor: Tensor, tally: Tally) -> None:
        self.tensor = tensor
        self._tally = tally
        tally.hold(tensor)

    def __del__(self) -> None:
        self._tally.release(self.tensor)


_listening: list[Tally] = []


def hold(tensor: Tensor) -> None:
    """Counts a tensor that is kept for a backward pass by other means than autograd's."""
    for tally in _listening:
        tally.hold(tensor)


def release(tensor: Tensor) -> None:
    """The tensor of an earlier :func:`hold` is let go."""
    for tally in _listening:
        tally.release(tensor)


@contextmanager
def saved_activations(parameters: nn.Module) -> Iterator[Tally]:
    """Counts what autograd keeps for backward passes inside the block, also in passes within passes.

    Parameters and buffers are counted elsewhere.
    """
    own = {p.untyped_storage().data_ptr() for p in (*parameters.parameters(), *parameters.buffers())}
    tally = Tally()

    def pack(tensor: Tensor) -> Tensor | _Saved:
        return tensor if tensor.untyped_storage().data_ptr() in own else _Saved(tensor, tally)

    def unpack(kept: Tensor | _Saved) -> Tensor:
        return kept.tensor if isinstance(kept, _Saved) else kept

    _listening.append(tally)
    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            yield tally
    finally:
        _listening.remove(tally)


def optimizer_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of the optimizer's state."""
    tensors = (t for state in optimizer.state.values() for t in state.values() if isinstance(t, Tensor))
    return sum(t.numel() * t.element_size() for t in tensors)


def module_bytes(method: Any) -> dict[str, int]:
    """Bytes of weights and buffers: the student's, and apart from them those of the modules counted apart."""
    apart = {name: networks.nbytes(getattr(method, name)) for name in method.counted_apart}
    return {"student": networks.nbytes(method) - sum(apart.values()), **apart}


def state_bytes(state: nn.Module | Tensor) -> int:
    """Bytes of what a checkpoint holds of a module, or of one tensor."""
    tensors = [state] if isinstance(state, Tensor) else state.state_dict().values()
    return sum(t.numel() * t.element_size() for t in tensors)


def row_bytes(tensor: Tensor) -> int:
    """Bytes of a row of a tensor [n, ...], also if it has none yet."""
    return tensor[:0].new_empty(1, *tensor.shape[1:]).nbytes


def image_bytes(images: Images, ids: np.ndarray) -> int:
    """Bytes of the pixels of some images, uncompressed."""
    return int(image_sizes(images, ids).sum())


def image_sizes(images: Images, ids: np.ndarray) -> np.ndarray:
    """Bytes of the pixels of each image, int64 [n]; read in parts, as they may lie in a file."""
    sizes = [np.zeros(0, np.int64)]
    for start in range(0, len(ids), 64):
        batch = images.gather(ids[start : start + 64])
        each = np.prod(batch.pixels.shape[1:3]) if batch.sizes is None else batch.sizes.prod(axis=1)
        sizes.append(np.broadcast_to(each * batch.pixels.shape[-1], len(batch.pixels)))
    return np.concatenate(sizes)


def gradient_bytes(network: nn.Module) -> int:
    """Bytes of the gradients of all trained parameters."""
    return sum(p.numel() * p.element_size() for p in network.parameters() if p.requires_grad)


def process_peak(device: torch.device) -> int:
    """The highest use so far: of the CUDA allocator, or of the process's resident memory; 0 where nothing tells it."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        # Not getrusage: a process started by a larger one inherits that one's peak there.
        return _from_status("VmHWM")
    except (OSError, IndexError):
        if resource is None:
            return 0  # not known
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def in_use(device: torch.device) -> int:
    """What the run takes now: of the CUDA allocator, or the process's resident memory (Linux)."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    try:
        return _from_status("VmRSS")
    except (OSError, IndexError) as error:
        raise UserError(
            "a memory budget on the CPU needs Linux's /proc/self/status; give --micro-batch and --recompute by hand"
        ) from error


def forget_peak(device: torch.device) -> None:
    """Starts :func:`process_peak` anew from what is in use now; what is free already goes first."""
    gc.collect(1)  # what has just been made and dropped; a full collection takes longer than most measurements
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    return_free_memory()
    try:
        _RESET_PEAK.write_text("5")
    except OSError as error:
        raise UserError(
            f"measuring memory needs to write {_RESET_PEAK} ({error.strerror}); "
            "give --micro-batch and --recompute by hand"
        ) from error


def return_free_memory() -> None:
    """Gives the heap's free pages back to the system, where the C library is glibc; costs milliseconds.

    Phases of a run (sweep, training, evaluation) use blocks of different sizes: without this the holes that one of them
    leaves in the heap stay resident during the next.
    """
    if _glibc is not None:
        _glibc.malloc_trim(0)


def one_heap() -> None:
    """Settles how glibc allocates, so that resident memory can be planned.

    Blocks of 32 MB and more go back to the system when they are freed. Smaller ones stay in one heap for the next step:
    mapping them anew each time would cost up to a third of a step's time for the clearing of pages.
    """
    if _glibc is not None:
        for option, value in ((_MMAP_THRESHOLD, 2**25), (_TRIM_THRESHOLD, 2**26), (_ARENA_MAX, 1)):
            _glibc.mallopt(option, value)


def _find_glibc() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(None)
        return library if hasattr(library, "malloc_trim") and hasattr(library, "mallopt") else None
    except (OSError, TypeError):
        return None


_glibc = _find_glibc()
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8


def _from_status(field: str) -> int:
    return int(_STATUS.read_text().split(f"{field}:")[1].split()[0]) * 1024
