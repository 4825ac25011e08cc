"""Campaigns as tables: mean and standard deviation over the recorded seeds of each run, the paper's value beside it."""

import statistics
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table

from benchmarks.accuracy.campaign import Campaign, Record

# Column -> a record's value; None where it was not measured.
COLUMNS: dict[str, Callable[[Record], float | None]] = {
    "average accuracy": lambda r: r["summary"]["average_accuracy"],
    "incremental": lambda r: r["summary"]["average_incremental_accuracy"],
    "forgetting": lambda r: r["summary"]["forgetting"],
}
# Threads wait for each other, which counts too: CPU time is that of runs with one.
CPU_TIME: dict[str, Callable[[Record], float | None]] = {
    "CPU s": lambda r: r.get("cpu_seconds") if r["machine"]["threads"] == 1 else None
}
WALL_TIME: dict[str, Callable[[Record], float | None]] = {"wall s": lambda r: r["wall_seconds"]}
MEMORY: dict[str, Callable[[Record], float | None]] = {
    "peak MB": lambda r: r["summary"]["peak_memory"]["total"] / 1e6,
    "teacher MB": lambda r: r["summary"]["peak_memory"]["teacher"] / 1e6,
    "bank MB": lambda r: r["summary"]["peak_memory"]["bank"] / 1e6,
}


def show(campaign: Campaign, *, markdown: bool = False) -> None:
    """Prints the campaign's table."""
    header, rows = rows_of(campaign)
    if markdown:
        lines = [header, ["---"] * len(header), *rows]
        print("\n".join("| " + " | ".join(line) + " |" for line in lines))
        return
    table = Table(*header, title=campaign.name, title_justify="left")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def rows_of(campaign: Campaign) -> tuple[list[str], list[list[str]]]:
    """Header and rows; costs where runs are compared with a reference or timed, and differences to it seed by seed."""
    columns = COLUMNS
    if campaign.reference or campaign.timed:
        columns = columns | (WALL_TIME if campaign.timed else CPU_TIME) | MEMORY
    header = ["run", "seeds", *(["paper"] if campaign.paper else []), *columns]
    header += [f"minus {campaign.reference}"] if campaign.reference else []
    rows = []
    for run in campaign.runs:
        records = campaign.records(run)
        if not records:
            continue
        row = [run, str(len(records))]
        if campaign.paper:
            row.append(f"{campaign.paper[run]:.1f}" if run in campaign.paper else "")
        row += [spread([value(record) for record in records.values()]) for value in columns.values()]
        if campaign.reference:
            row.append("" if run == campaign.reference else _difference(campaign, records))
        rows.append(row)
    return header, rows


def spread(values: Sequence[float | None]) -> str:
    """Mean ± standard deviation of those that were measured."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    deviation = f" ± {statistics.stdev(known):.1f}" if len(known) > 1 else ""
    return f"{statistics.mean(known):.1f}{deviation}"


def _difference(campaign: Campaign, records: dict[int, Record]) -> str:
    """Of average accuracies with the same seed: the same labels, tasks and initial weights."""
    accuracy = COLUMNS["average accuracy"]
    others = campaign.records(campaign.reference or "")
    pairs = [(accuracy(records[seed]), accuracy(others[seed])) for seed in records if seed in others]
    return spread([a - b for a, b in pairs if a is not None and b is not None])
