"""The version, and what is installed beside it: for ``nncsl --version`` and for every run's summary."""

import platform
from importlib import metadata

__version__ = "0.3.0"


def versions() -> dict[str, str]:
    """Versions of nncsl and what it stands on, and the device found."""
    found = {"nncsl": __version__, "python": platform.python_version()}
    found |= {name: _installed(name) for name in ("torch", "torchvision", "triton", "numpy", "h5py")}
    found["faiss"] = next((v for name in ("faiss-gpu", "faiss-cpu") if (v := _installed(name)) != _ABSENT), _NO_FAISS)
    found["device"] = describe_device()
    return found


def describe_device() -> str:
    """The device that ``--device auto`` takes, in words."""
    import torch

    if torch.cuda.is_available():
        memory = torch.cuda.get_device_properties(0).total_memory / 2**30
        return f"cuda ({torch.cuda.get_device_name(0)}, {memory:.0f} GiB)"
    return f"cpu ({torch.get_num_threads()} threads)"


_ABSENT = "not installed"
_NO_FAISS = 'not installed (pip install "nncsl[cpu]" or "nncsl[gpu]")'


def _installed(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return _ABSENT
