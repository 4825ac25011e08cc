"""What a run was given: the classes, images and labels of each task, and what guessing would give."""

from nncsl.record import introduction
from nncsl.report.collect import RunRecord
from nncsl.report.html import Cell, figure, table, tag, text

_SHOWN_CLASSES = 12  # of a task; more are counted


def names_of(record: RunRecord, known: tuple[str, ...] | None) -> list[str]:
    """Return the names of all classes; numbers where a run has not kept its names yet."""
    return list(known) if known else [str(c) for c in range(1 + max((c for t in record.tasks for c in t), default=-1))]


def warnings(record: RunRecord, names: list[str]) -> str:
    """Return what the run warned of when it began."""
    return "".join(tag("p", text(said), class_="status") for said in introduction.warnings(record.tasks, names))


def chance(record: RunRecord) -> float | None:
    """Return percent correct by guessing among all classes seen so far."""
    seen = sum(len(classes) for classes in record.tasks[: max(1, record.finished)])
    return introduction.chance(seen) if seen else None


def tasks(record: RunRecord, names: list[str]) -> str:
    """Return a table of the tasks: classes, images, labels, and what guessing would give after each."""
    rows: list[list[Cell | str]] = []
    seen = 0
    for number, classes in enumerate(record.tasks):
        seen += len(classes)
        listed = ", ".join(names[c] for c in classes[:_SHOWN_CLASSES])
        more = f" and {len(classes) - _SHOWN_CLASSES} more" if len(classes) > _SHOWN_CLASSES else ""
        counts = (len(classes), record.unlabeled[number], record.labeled[number] if record.labeled else 0)
        cells = [Cell(f"{count:,}", count) for count in counts]
        guessed = introduction.chance(seen)
        rows.append([str(number + 1), listed + more, *cells, Cell(f"{guessed:.1f}%", guessed)])
    if not rows:
        return ""
    headings = ["task", "its classes", "classes", "images", "labels", "chance"]
    note = (
        f"{sum(record.unlabeled):,} images count as unlabeled, {sum(record.labeled):,} have a label. "
        "Chance: guessing among all classes seen by then."
    )
    return figure("Tasks", table(headings, rows, name="tasks"), note, name="tasks", wide=True)
