"""Reports for people: one self-contained HTML file of a run, or of several beside each other."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nncsl import files
from nncsl.errors import UserError

NAME = "report.html"
_ADVICE = "choose another -o FILE"


def write(folders: Sequence[Path], output: Path | None = None, opened: Any = None) -> Path:
    """Writes the report of one run (by default into its folder) or of several (into the current one); its path.

    opened: the source and tasks of a single run, where the caller holds them already.
    """
    from nncsl.report import collect, compare, single

    folders = [path for path in dict.fromkeys(folders) if path.is_dir() or path.suffix != ".html"]  # of runs/* too
    if not folders:
        raise UserError("no run was named: expected folders that `nncsl train` wrote, e.g. runs/digits-nncsl-seed0")
    records = [collect.collect(folder) for folder in folders]
    output = output or (folders[0] / NAME if len(folders) == 1 else Path(NAME))
    output = output / NAME if output.is_dir() else output
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{output} can't be written: {error.strerror}; {_ADVICE}") from error
    if not os.access(output.parent, os.W_OK):  # before minutes of drawing
        raise UserError(f"{output} can't be written: {output.parent} is read-only; {_ADVICE}")
    page = single.report(records[0], opened) if len(records) == 1 else compare.report(records)
    content = page.encode()
    files.write_file(output, lambda file: file.write(content), size=len(content), advice=_ADVICE)
    return output
