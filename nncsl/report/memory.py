"""Where memory goes at its peak."""

from nncsl.report import marks, scales
from nncsl.report.collect import RunRecord
from nncsl.report.html import figure, tag, text

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
