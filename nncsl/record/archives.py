"""The zip files that a run keeps (.npz, .pt), looked at before they are read: a small one must not become gigabytes.

nncsl stores everything as it is. So a member that is compressed, or an array that says it is larger than its member, is
not nncsl's: the file is damaged or forged.
"""

import zipfile
from pathlib import Path

import numpy as np

from nncsl import files
from nncsl.errors import DamagedError

LARGEST_ARRAYS = 1 << 30  # bytes of a file of arrays that is read as a whole
LARGEST = 1 << 40  # of one that is not
_BROKEN = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, MemoryError, RuntimeError)


def check_stored(path: Path, most: int) -> None:
    """Refuse what is no regular file of at most so many bytes, or has members that are compressed."""
    files.check_regular(path, most)
    try:
        with zipfile.ZipFile(path) as archive:
            packed = [member.filename for member in archive.infolist() if member.compress_type != zipfile.ZIP_STORED]
    except _BROKEN as error:
        raise DamagedError(f"{path} is damaged ({error}): copy the run anew") from error
    if packed:
        raise DamagedError(f"{path} is not a file that nncsl wrote: {packed[0][:80]} is compressed; copy the run anew")


def read_arrays(path: Path, names: tuple[str, ...] | None = None, most: int = LARGEST_ARRAYS) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file (the named ones, which have to be there, or all) by name."""
    check_stored(path, most)
    try:
        with zipfile.ZipFile(path) as archive:
            listed = names if names is not None else tuple(n.removesuffix(".npy") for n in archive.namelist())
            return {name: _read(archive, f"{name}.npy") for name in listed}
    except _BROKEN as error:
        raise DamagedError(f"{path} is damaged ({error}): copy the run anew") from error


def _read(archive: zipfile.ZipFile, member: str) -> np.ndarray:
    with archive.open(member) as file:
        if np.lib.format.read_magic(file) != (1, 0):
            raise ValueError(f"{member} has another format than nncsl writes")
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        promised = dtype.itemsize * int(np.prod([1, *shape], dtype=object))
        if dtype.hasobject or promised > archive.getinfo(member).file_size:
            raise ValueError(f"{member} says that it has {promised:,} bytes, which it has not")
    with archive.open(member) as file:
        return np.lib.format.read_array(file, allow_pickle=False)
