"""Where memory goes at its peak, and what is kept: a ledger in bytes."""

from pathlib import Path

from nncsl.report import marks, scales
from nncsl.report.collect import RunRecord
from nncsl.report.html import Cell, figure, table, tag, text
from nncsl.report.ledger import ledger_table

_PARTS = {
    "student": "the network's weights and buffers",
    "gradients": "of all trained weights",
    "optimizer": "momentum",
    "activations": "kept for the backward pass of a step",
    "teacher": "a second network",
    "bank": "the stored projections in memory",
    "inputs": "what a frozen backbone made of the views, stored",
    "data": "images",
    "memory": "images kept of earlier tasks; they are among the data",
    "generator": "makes images of earlier tasks",
    "discriminator": "judges what the generator makes",
}

# Part of the peak memory -> what it is, and how long it is kept.
_KEPT = {
    "memory": ("replayed images", "from task to task"),
    "student": ("the network", "from task to task"),
    "generator": ("the generator", "from task to task"),
    "discriminator": ("the discriminator", "from task to task"),
    "bank": ("feature bank", "during a task: filled anew when one begins"),
    "teacher": ("teacher's weights", "during a task: copied anew when one begins"),
}


def split(record: RunRecord) -> str:
    """Return the peaks of each part as bars."""
    parts = record.memory_parts
    if not parts:
        return ""
    most = max([*parts.values(), 1])
    rows = []
    for index, (name, size) in enumerate(parts.items()):
        bar = tag("span", class_=f"bar {marks.style(index)}", style=f"--v:{size / most:.4f}") if size else ""
        about = tag("small", text(_PARTS.get(name, "")))
        row = [tag("dt", text(name), about), tag("dd", bar, tag("span", scales.size(size), class_="amount"))]
        rows.append(tag("div", *row, data_name=name, data_value=size))
    note = "Peaks of each part."
    if total := record.memory.get("total"):
        note += f" The whole process, libraries included, took {scales.size(total)}."
    if budget := record.memory.get("budget"):
        used = (total or 0) - record.memory.get("baseline", 0)
        note += f" Of a budget of {scales.size(budget)}, {scales.size(used)} were used."
    return figure("Where memory goes", tag("dl", *rows, class_="bars"), note, name="memory-split", wide=True)


def ledger(record: RunRecord) -> str:
    """Return what is kept, in bytes: at its most, and beside the student task by task."""
    parts = dict(record.memory)
    parts["bank"] = parts.get("bank") or _folder_bytes(record.folder / "bank")  # one on disk takes no memory
    rows: list[list[Cell | str]] = [
        [about, Cell(scales.size(parts[name]), parts[name]), how_long]
        for name, (about, how_long) in _KEPT.items()
        if parts.get(name)
    ]
    if not rows:
        return ""
    note = "Apart from these nothing of a task is left when it is over; its images are gone."
    tables = table(["what", "bytes", "how long"], rows, name="ledger") + ledger_table(record)
    return figure("What is kept", tables, note, name="ledger", wide=True)


def _folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else 0
