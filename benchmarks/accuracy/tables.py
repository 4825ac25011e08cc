"""Campaigns as tables: mean and standard deviation over the recorded seeds of each run, the paper's value beside it."""

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from rich.console import Console
from rich.table import Table
from scipy import stats

from nncsl.errors import ConfigError
from nncsl.record.ledger import TOTAL

from ..accuracy import full_size
from ..accuracy.campaign import Campaign
from ..accuracy.records import Record

# Column -> a record's value; None where it was not measured.
Columns = dict[str, Callable[[Record], float | None]]
COLUMNS: Columns = {
    "average accuracy": lambda r: r["summary"]["average_accuracy"],
    "incremental": lambda r: r["summary"]["average_incremental_accuracy"],
    "forgetting": lambda r: r["summary"]["forgetting"],
}
INTERVAL = "95% interval"  # of the mean of average accuracies, where there are seeds enough to speak of one
FEWEST_FOR_INTERVAL = 5
# What depends on the processor. Threads wait for each other, which counts too: CPU time is that of runs with one.
CPU_TIME: Columns = {"CPU s": lambda r: r.get("cpu_seconds") if r["machine"]["threads"] == 1 else None}
SPEED: Columns = {
    "ms a step": lambda r: 1e3 * r["summary"]["seconds"] / r["steps"] if r.get("steps") else None,
    "views/s": lambda r: r["summary"]["images_per_second"],
}
MEMORY: Columns = {
    "peak MB": lambda r: r["summary"]["peak_memory"]["total"] / 1e6,
    "teacher MB": lambda r: r["summary"]["peak_memory"]["teacher"] / 1e6,
    "bank MB": lambda r: r["summary"]["peak_memory"]["bank"] / 1e6,
}
TRANSFER: Columns = {
    "forward transfer": lambda r: r["summary"].get("fwt"),
    "backward transfer": lambda r: r["summary"].get("bwt"),
    "forgetting": lambda r: r["summary"]["forgetting"],
}


def kept_megabytes(record: Record, *, full_size_network: bool = False) -> float | None:
    """Return what the run kept at its fullest beside its student; None if the version that made it counted nothing."""
    parts = full_size.kept(record) if full_size_network else record["summary"].get("kept")
    return parts[TOTAL] / 1e6 if parts else None


def transfer(_: Campaign) -> Columns:
    """How far tasks help or harm each other: forward, the next task before it is learned; backward, earlier ones."""
    return TRANSFER


def costs(campaign: Campaign) -> Columns:
    """What runs took: time on one processor, memory while they ran, and what they kept."""
    return {
        "steps": lambda r: r.get("steps"),
        **on_one_processor(campaign, SPEED | CPU_TIME),
        **MEMORY,
        "activations MB": lambda r: r["summary"]["peak_memory"]["activations"] / 1e6,
        "kept MB": kept_megabytes,
    }


KEPT: Columns = {
    "kept MB": kept_megabytes,
    "kept MB, ResNet-18": lambda r: kept_megabytes(r, full_size_network=True),
}


def show(campaign: Campaign, *, markdown: bool = False) -> None:
    """Prints the campaign's table."""
    if markdown:
        print(as_markdown(campaign))
        return
    header, rows = rows_of(campaign)
    table = Table(*header, title=campaign.name, title_justify="left")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def as_markdown(campaign: Campaign) -> str:
    """Return the campaign's table for a page."""
    return markdown(*rows_of(campaign))


def chosen_columns(campaigns: Iterable[Campaign], of_it: Callable[[Campaign], Columns]) -> str:
    """Return a table of some columns for a page: a row for each recorded run; of several campaigns with their data."""
    several = list(campaigns)
    rows = []
    columns: Columns = {}
    for campaign in several:
        columns = of_it(campaign)
        for run in campaign.runs:
            if records := campaign.records(run):
                cells = [spread([value(record) for record in records.values()]) for value in columns.values()]
                rows.append([*([campaign.title] if len(several) > 1 else []), run, str(len(records)), *cells])
    return markdown([*(["data"] if len(several) > 1 else []), "run", "seeds", *columns], rows)


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table for a page."""
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, ["---"] * len(header), *rows))


def guesses(campaign: Campaign, runs: Sequence[str]) -> str:
    """Return a table for a page: percent of unlabeled images that these runs recognized when each task ended.

    A run without guesses has no row.
    """
    rows, most = [], 0
    for run in runs:
        if run not in campaign.runs:
            raise ConfigError(f"run = {run}: expected one of {campaign.name}'s, {', '.join(campaign.runs)}")
        ends = [_last_of_tasks(record, "unlabeled_accuracy") for record in campaign.records(run).values()]
        if ends := [values for values in ends if values]:
            rows.append([run, str(len(ends)), *(spread(values) for values in zip(*ends, strict=True))])
            most = max(most, len(ends[0]))
    return markdown(["run", "seeds", *(f"task {number}" for number in range(1, most + 1))], rows)


def _last_of_tasks(record: Record, curve: str) -> list[float | None]:
    """Return a curve's values at the last epoch of each task; none where the run has no such curve."""
    curves = record.get("curves", {})
    return list(dict(zip(curves["task"], curves[curve], strict=True)).values()) if curve in curves else []


def rows_of(campaign: Campaign) -> tuple[list[str], list[list[str]]]:
    """Header and rows; costs where runs are compared with a reference or timed, and differences to it seed by seed.

    Bytes kept where the campaign asks for them: with the run's own network, and with the paper's.
    """
    columns = COLUMNS | (KEPT if campaign.counts_bytes else {})
    if campaign.reference or campaign.timed or campaign.counts_seconds:
        columns = columns | (_wall_time(campaign) if campaign.timed else on_one_processor(campaign, CPU_TIME)) | MEMORY
    known = {name: values for name, values in (("paper", campaign.paper), ("anchor", campaign.anchors)) if values}
    intervals = {run: interval(average_accuracies(campaign.records(run))) for run in campaign.runs}
    header = ["run", "seeds", *known, *columns]
    beside = header.index("average accuracy") + 1
    header[beside:beside] = [INTERVAL] if any(intervals.values()) else []
    header += [f"minus {campaign.reference}"] if campaign.reference else []
    rows = []
    for run in campaign.runs:
        records = campaign.records(run)
        if not records:
            continue
        row = [run, str(len(records))]
        row += [f"{values[run]:.1f}" if run in values else "" for values in known.values()]
        row += [spread([value(record) for record in records.values()]) for value in columns.values()]
        row[beside:beside] = [intervals[run]] if any(intervals.values()) else []
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


def interval(values: Sequence[float]) -> str:
    """Return where the mean of all seeds there are lies with 95% confidence (Student's t); "" of fewer than five."""
    if len(values) < FEWEST_FOR_INTERVAL:
        return ""
    reach = stats.t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return f"{statistics.mean(values) - reach:.1f} to {statistics.mean(values) + reach:.1f}"


def average_accuracies(records: Mapping[int, Record]) -> list[float]:
    return [record["summary"]["average_accuracy"] for record in records.values()]


def on_one_processor(campaign: Campaign, columns: Columns) -> Columns:
    """Columns of the runs on the processor that made most of them; others could not be compared with these."""
    everything = [record for run in campaign.runs for record in campaign.records(run).values()]
    processors = Counter(record["machine"].get("processor") for record in everything)
    usual = max(processors, key=processors.__getitem__, default=None)

    def there(measure: Callable[[Record], float | None]) -> Callable[[Record], float | None]:
        return lambda r: measure(r) if r["machine"].get("processor") == usual else None

    return {name: there(measure) for name, measure in columns.items()}


def _wall_time(campaign: Campaign) -> Columns:
    """Minutes; beside a reference also what they are of its time, and where they went: ratios outlive a machine."""
    minutes: Columns = {"wall min": lambda r: r["wall_seconds"] / 60}
    if not campaign.reference:
        return minutes
    others = campaign.records(campaign.reference)

    def percent(seconds: Callable[[Record], float]) -> Callable[[Record], float | None]:
        def share(record: Record) -> float | None:
            other = others.get(record["summary"]["seed"])
            return 100 * seconds(record) / other["wall_seconds"] if other else None

        return share

    return minutes | {
        f"% of {campaign.reference}'s": percent(lambda r: r["wall_seconds"]),
        "training": percent(lambda r: r["summary"]["seconds"]),
        "the rest": percent(lambda r: r["wall_seconds"] - r["summary"]["seconds"]),
    }


def _difference(campaign: Campaign, records: dict[int, Record]) -> str:
    """Of average accuracies with the same seed: the same labels, tasks and initial weights."""
    accuracy = COLUMNS["average accuracy"]
    others = campaign.records(campaign.reference or "")
    pairs = [(accuracy(records[seed]), accuracy(others[seed])) for seed in records if seed in others]
    return spread([a - b for a, b in pairs if a is not None and b is not None])
