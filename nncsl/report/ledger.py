"""What a run kept beside its student, as a table."""

from nncsl.record.ledger import TOTAL
from nncsl.report import scales
from nncsl.report.collect import RunRecord
from nncsl.report.html import Cell, table


def ledger_table(record: RunRecord) -> str:
    """Return a row for each finished task and a column for each part; nothing of a run that counted nothing."""
    if not record.kept:
        return ""
    parts = list(dict.fromkeys(part for task in record.kept for part in task if part != TOTAL))
    rows = []
    for number, task in enumerate(record.kept, 1):
        sizes = [task.get(part, 0) for part in [*parts, TOTAL]]
        rows.append([Cell(str(number), number), *(Cell(scales.size(size), size) for size in sizes)])
    return table(["task", *parts, TOTAL], rows, name="kept")
