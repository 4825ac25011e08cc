"""What a run keeps beside its network, task by task: a ledger in bytes."""

from nncsl.record.ledger import TOTAL
from nncsl.report import scales
from nncsl.report.collect import RunRecord
from nncsl.report.html import Cell, figure, table

_PARTS = {
    "memory": "replayed images",
    "unlabeled_memory": "replayed images without labels",
    "labels": "their ids and labels",
    "teacher": "teacher's weights",
    "bank": "feature bank",
    "own.images": "images of the method",
}
_ANEW = {
    "teacher": "The teacher's weights are copied anew when a task begins.",
    "bank": "The feature bank is filled anew when a task begins.",
}


def ledger(record: RunRecord) -> str:
    """Return a row for each finished task and a column for each part; nothing of a run that counted nothing."""
    parts = list(dict.fromkeys(part for task in record.kept for part in task if part != TOTAL))
    if not parts:
        return ""
    rows = []
    for number, task in enumerate(record.kept, 1):
        sizes = [task.get(part, 0) for part in [*parts, TOTAL]]
        rows.append([Cell(str(number), number), *(Cell(scales.size(size), size) for size in sizes)])
    network = record.memory.get("student")
    notes = [
        f"Beside the network{f' ({scales.size(network)})' if network else ''}, from task to task.",
        *(note for part, note in _ANEW.items() if part in parts),
        "Apart from these nothing of a task is left when it is over; its images are gone.",
    ]
    columns = ["task", *(_PARTS.get(part, part) for part in parts), TOTAL]
    return figure("What is kept", table(columns, rows, name="ledger"), " ".join(notes), name="ledger", wide=True)
