"""Files for the user, written beside their name and renamed: whatever happens, the old one or the new one is there."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from nncsl.errors import UserError


@contextmanager
def written_beside(target: Path) -> Iterator[Path]:
    """A path to write to; it gets the name ``target`` when the block ends well, and is removed when it does not."""
    beside = target.with_name(f".{target.stem}.new{target.suffix}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield beside
        with beside.open("rb") as file:
            os.fsync(file.fileno())
        beside.replace(target)
    except OSError as error:
        raise UserError(f"{target} can't be written: {error.strerror or error}; choose another --out") from error
    finally:
        with suppress(OSError):  # renamed, or never made
            beside.unlink()
