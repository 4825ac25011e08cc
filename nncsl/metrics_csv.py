"""metrics.jsonl as a table: one row per epoch and per task, a column for everything that any row has."""

import csv
import io
from pathlib import Path

from nncsl.errors import UserError
from nncsl.journal import Journal, flat


def table(run: Path) -> str:
    """The run's journal as csv; cells without a value are empty. Tasks and epochs count from 0, as in the journal."""
    path = run / "metrics.jsonl"
    if not path.exists():
        raise UserError(f"{run} has no {path.name}: expected the folder of a run that has begun to train")
    rows = [flat(line) for line in Journal(path).read()]
    columns = list(dict.fromkeys(["kind", "task", "epoch", *(name for row in rows for name in row)]))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
