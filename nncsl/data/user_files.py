"""Files that a user names: text of bounded length, under names of whatever bytes."""

import os
from pathlib import Path

from nncsl.files import open_regular

_LARGEST_TEXT = 1 << 28  # bytes; a list of all of ImageNet's names has 40 MB


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file; an OSError or ValueError says why there is none."""
    with open_regular(path, _LARGEST_TEXT) as file:
        return file.read(_LARGEST_TEXT).decode("utf-8-sig")


def as_text(name: str | Path) -> str:
    """Return a file's name as text that can be printed and stored, whatever its bytes are."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def file_times(path: Path) -> bytes:
    """Return size and times of a file: the second one changes with every write, even where the first is set back."""
    status = path.stat()
    return f" {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}\n".encode()
