"""Files that a user names: regular ones only, of bounded length, under names of whatever bytes."""

import os
import stat
from pathlib import Path
from typing import BinaryIO

_LARGEST_TEXT = 1 << 28  # bytes; a list of all of ImageNet's names has 40 MB


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading; a pipe or a device, which could keep its reader for ever, is refused."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError("it is not a regular file")
    return os.fdopen(handle, "rb")


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file; an OSError or ValueError says why there is none."""
    with open_regular(path) as file:
        content = file.read(_LARGEST_TEXT + 1)
    if len(content) > _LARGEST_TEXT:
        raise ValueError(f"it has more than {_LARGEST_TEXT} bytes")
    return content.decode("utf-8-sig")


def shown(name: str | Path) -> str:
    """Return a file's name as text that can be printed and stored, whatever its bytes are."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def reason(error: Exception) -> str:
    """Return why a file can't be read, without its name."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def file_times(path: Path) -> bytes:
    """Return size and times of a file: the second one changes with every write, even where the first is set back."""
    status = path.stat()
    return f" {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}\n".encode()
