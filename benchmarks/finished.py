"""What measurements of finished runs share: which folders they are, names, a CSV file with their rows."""

import argparse
import csv
from pathlib import Path

from nncsl.files import write_table

Row = dict[str, str]


def finished(text: str) -> Path:
    """Return the folder of a finished run: a type of argument."""
    folder = Path(text)
    if not (folder / "summary.json").exists():
        raise argparse.ArgumentTypeError(f"{folder} is not a finished run: summary.json is not in it")
    return folder


def name_of(folder: Path) -> str:
    """Return a run's name in tables: its folder's and that of the folder around it."""
    return "/".join(folder.resolve().parts[-2:])


def read(path: Path, *keys: str) -> dict[tuple[str, ...], Row]:
    """Return rows by the columns that tell them apart; none where there is no file yet."""
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        return {tuple(row[key] for key in keys): row for row in csv.DictReader(file)}


def put(path: Path, row: Row, *keys: str) -> dict[tuple[str, ...], Row]:
    """Write a row into the file, in place of an earlier one with the same keys; return all, sorted by these."""
    rows = {**read(path, *keys), tuple(row[key] for key in keys): row}
    rows = {key: rows[key] for key in sorted(rows)}
    write_table(path, list(rows.values()), list(row))
    return rows
