"""What this machine has, what of it does not fit together, and what will be slow: plain text, to be read or pasted."""

import os
import platform
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from nncsl.version import __version__, versions

_PROBE = 32 * 2**20  # bytes that are written to measure the disk
_SLOW_DISK = 50  # MB/s
_LITTLE_ROOM = 2 * 10**9
_OPTIONAL = {
    "faiss": 'searching a bank compares with every row; pip install "nncsl[cpu]" or "nncsl[gpu]"',
    "tensorboard": 'no event files; pip install "nncsl[tensorboard]"',
    "shtab": 'no shell completion; pip install "nncsl[completion]"',
    "onnxruntime": 'no export to ONNX; pip install "nncsl[export]"',
    "timm": 'no network.backbone=timm:NAME; pip install "nncsl[backbones]"',
}


class Disk(NamedTuple):
    """Speed of the current folder in MB/s, written and synced, and free bytes; speed None: it can't be written to."""

    speed: float | None
    free: int


def report(folder: Path) -> str:
    """Return what is to be said of this machine; ``folder`` is where runs would go."""
    disk = measure(folder)
    speed = "can't be written to" if disk.speed is None else f"writes {disk.speed:.0f} MB/s"
    found = versions() | {
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "python at": sys.executable,
        "nncsl at": str(Path(__file__).parent),
        **devices(),
        "cores": f"{cores()} usable of {os.cpu_count()}",
        "memory": memory(),
        "disk": f"{folder}: {speed}, {disk.free / 1e9:.1f} GB free",
    }
    parts = [[f"{name:<12}{value}" for name, value in found.items()]]
    parts.append(_titled("conflicts", [*broken_requirements(), *strange_installs()]))
    parts.append(_titled("slow", list(slow(disk))))
    parts.append(_titled("not installed", [f"{name}: {what}" for name, what in _OPTIONAL.items() if not _has(name)]))
    return "\n\n".join("\n".join(part) for part in parts)


def measure(folder: Path) -> Disk:
    """Write a file, sync and remove it."""
    free = shutil.disk_usage(folder).free
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            content = os.urandom(_PROBE)
            began = time.perf_counter()
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            return Disk(_PROBE / 1e6 / (time.perf_counter() - began), free)
    except OSError:
        return Disk(None, free)


def devices() -> dict[str, str]:
    """Return each CUDA device, by number."""
    import torch

    found = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    return {f"cuda:{number}": f"{each.name}, {each.total_memory / 1e9:.0f} GB" for number, each in enumerate(found)}


def cores() -> int:
    """Return how many cores this process may use: containers often get fewer than there are."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = Path("/sys/fs/cgroup/cpu.max")
    limit = re.match(r"(\d+) (\d+)", quota.read_text()) if quota.exists() else None
    return max(1, min(allowed, round(int(limit[1]) / int(limit[2])) if limit else allowed))


def memory() -> str:
    """Return total and available memory in words, where Linux tells."""
    path = Path("/proc/meminfo")
    if not path.exists():
        return "unknown"
    kilobytes = {name: int(size) for name, size in re.findall(r"^(\w+):\s+(\d+) kB", path.read_text(), re.MULTILINE)}
    available, total = (1024 * kilobytes[name] / 1e9 for name in ("MemAvailable", "MemTotal"))
    return f"{available:.1f} of {total:.1f} GB available"


def broken_requirements() -> Iterator[str]:
    """Give a sentence for each package among nncsl's whose demands on another one are not met."""
    from packaging.requirements import Requirement

    packages = ("nncsl", "torch", "torchvision", "triton", "numpy", "h5py", "scikit-learn", "matplotlib", "faiss-cpu")
    for name in (*packages, "timm"):
        for text in (metadata.requires(name) or []) if _version(name) else []:
            wanted = Requirement(text)
            found = _version(wanted.name)
            if wanted.marker and not wanted.marker.evaluate({"extra": ""}):
                continue
            if found is None:
                yield f"{name} needs {wanted.name}{wanted.specifier}, which is not installed"
            elif not wanted.specifier.contains(found, prereleases=True):
                yield f"{name} needs {wanted.name}{wanted.specifier}, {found} is installed"


def strange_installs() -> Iterator[str]:
    """Give a sentence for each package that gets in the way of another one."""
    installed = _version("nncsl")
    if installed not in (None, __version__):
        yield f"pip knows nncsl {installed}, this is {__version__}: install it again (pip install -e . in a checkout)"
    if _version("faiss-cpu") and _version("faiss-gpu"):
        yield "faiss-cpu and faiss-gpu are both installed and overwrite each other: uninstall both, install one"
    if _version("kernels"):
        yield "kernels (Hugging Face's) is installed: ours is nncsl.kernels; in a checkout the short name is ours too"


def slow(disk: Disk) -> Iterator[str]:
    """Give a sentence for each thing that will take time, and why."""
    import torch

    from nncsl import networks

    if not torch.cuda.is_available():
        built = "this torch is built without CUDA" if torch.version.cuda is None else "torch finds no CUDA device"
        yield f"no GPU ({built}): digits takes minutes, the small CIFAR presets too, the full-size ones days"
        yield "the kernels run as blockwise torch on a CPU, not in Triton"
        if networks.emulates("bf16"):
            yield "precision=bf16 is emulated on this processor: fp32 is faster"
    if torch.get_num_threads() > cores():
        yield f"torch uses {torch.get_num_threads()} threads on {cores()} cores: set OMP_NUM_THREADS={cores()}"
    if torch.get_num_threads() == 1 < cores():
        yield f"torch uses one of {cores()} cores (OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'not set')})"
    if hasattr(os, "getloadavg") and os.getloadavg()[0] > cores() + 0.5:
        yield f"other programs keep the cores busy (load {os.getloadavg()[0]:.1f} on {cores()} cores)"
    if disk.speed is not None and disk.speed < _SLOW_DISK:
        yield f"this folder writes {disk.speed:.0f} MB/s: checkpoints and banks wait for it; try --out on another disk"
    if disk.speed is None:
        yield "this folder can't be written to: runs need --out elsewhere"
    if disk.free < _LITTLE_ROOM:
        yield f"{disk.free / 1e9:.1f} GB are free here: large banks and image caches may not fit"
    if platform.system() != "Linux":
        yield "outside of Linux there is no Triton, and --memory-budget can't measure the CPU's memory"


def _titled(title: str, lines: list[str]) -> list[str]:
    return [f"{title}: none"] if not lines else [f"{title}:", *(f"  - {line}" for line in lines)]


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _has(module: str) -> bool:
    from importlib.util import find_spec

    return find_spec(module) is not None
