"""The report of several runs: which was better."""

import statistics
from collections.abc import Callable, Sequence

from nncsl import metrics
from nncsl.report import marks, paper, scales
from nncsl.report.charts import line_chart, measured
from nncsl.report.collect import RunRecord
from nncsl.report.groups import Group, group
from nncsl.report.html import Cell, figure, section, table, tag, text
from nncsl.report.page import page
from nncsl.report.single import epoch_span, task_parts, with_deviation

_Value = Callable[[RunRecord], float | None]

# Column -> (value of a run, how it is shown, +1 if more is better and -1 if less is).
_COLUMNS: dict[str, tuple[_Value, Callable[[float], str], int]] = {
    "average accuracy": (lambda run: run.average_accuracy, lambda v: f"{v:.1f}", 1),
    "incremental accuracy": (lambda run: run.average_incremental_accuracy, lambda v: f"{v:.1f}", 1),
    "forgetting": (lambda run: run.forgetting, lambda v: f"{v:.1f}", -1),
    "time": (lambda run: run.seconds, scales.duration, -1),
    "peak memory": (lambda run: run.memory.get("total"), scales.size, -1),
}
_WITH_DEVIATION = ("average accuracy", "incremental accuracy", "forgetting")


def report(records: Sequence[RunRecord]) -> str:
    """The whole page."""
    groups = group(records)
    datasets = sorted({record.config["dataset"].split("/")[-1] for record in records})
    title = f"{len(records)} runs on {', '.join(datasets)}"
    sections = [
        section("Comparison", _group_table(groups), name="comparison"),
        section("Accuracy", *_accuracy(groups), name="accuracy"),
        section("Training", *_training(groups), name="training"),
        section("Memory", _memory(groups), name="memory"),
        section("Runs", _run_table(records, groups), _differences(groups), name="runs"),
    ]
    header = tag("h1", text(title)) + tag("p", text(verdict(groups)), class_="facts")
    return page(title, header, sections)


def verdict(groups: Sequence[Group]) -> str:
    """One sentence: who is ahead, by how much, and on how many of the seeds that both have."""
    ranked = [(mean, each) for each in groups if (mean := each.mean(lambda run: run.average_accuracy))]
    ranked.sort(key=lambda entry: -entry[0][0])
    if not ranked:
        return "None of the runs is complete yet."
    (best, first) = ranked[0]
    said = f"{first.name}: {with_deviation(*best)}% average accuracy over {_count(len(first.complete), 'run')}"
    if len(ranked) == 1:
        return said + "."
    (next_best, second) = ranked[1]
    gap = best[0] - next_best[0]
    pairs = _paired(first, second)
    wins = f", and ahead on {sum(a > b for a, b in pairs)} of {_count(len(pairs), 'common seed')}" if pairs else ""
    return f"{said}; {gap:.1f} points ahead of {second.name} ({with_deviation(*next_best)}%){wins}."


def _paired(first: Group, second: Group) -> list[tuple[float, float]]:
    """Average accuracies of the runs with equal seeds."""

    def by_seed(each: Group) -> dict[int, float]:
        return {run.config["seed"]: run.average_accuracy or 0.0 for run in each.complete}

    ours, theirs = by_seed(first), by_seed(second)
    return [(ours[seed], theirs[seed]) for seed in ours if seed in theirs]


def _group_table(groups: Sequence[Group]) -> str:
    apart = list(groups[0].apart) or ["method"]
    published = [paper.published(each.runs[0].config) for each in groups]
    columns = dict(_COLUMNS)
    means = {name: [each.mean(value) for each in groups] for name, (value, _, _) in columns.items()}
    rows = []
    ranked = sorted(range(len(groups)), key=lambda i: -(means["average accuracy"][i] or (-1.0, None))[0])
    for index in ranked:
        each = groups[index]
        settings = each.apart or {"method": each.runs[0].config["method"]}
        settled = [_setting(settings[key], muted=bool(each.apart) and key not in each.needed) for key in apart]
        settled[0] = Cell(marks.swatch(index) + settled[0].shown, settled[0].number)
        cells: list[Cell | str] = [*settled]
        unfinished = len(each.runs) - len(each.complete)
        note = f" (+{unfinished} unfinished)" if unfinished else ""
        cells.append(Cell(text(f"{len(each.complete)}{note}"), len(each.complete)))
        for name, (_, shown, better) in columns.items():
            cells.append(_mean_cell(means[name], index, shown, better, deviation=name in _WITH_DEVIATION))
            if name == "average accuracy" and any(published):
                known = published[index]
                cells.append(Cell(with_deviation(*known), known[0]) if known else "")
        rows.append(cells)
    headings = [*apart, "runs", *columns]
    if any(published):
        headings.insert(headings.index("average accuracy") + 1, "paper")
    note = "Mean ± standard deviation over seeds, complete runs alone. Bold: the best mean. Click on a heading to sort."
    return figure(
        "Which was better",
        table(headings, rows, name="groups", sortable=True, falling="average accuracy"),
        note,
        name="groups",
        wide=True,
    )


def _setting(value: object, *, muted: bool) -> Cell:
    number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    return Cell(tag("i", text(value)) if muted else text(value), number)


def _mean_cell(
    means: Sequence[tuple[float, float | None] | None],
    index: int,
    shown: Callable[[float], str],
    better: int,
    *,
    deviation: bool,
) -> Cell:
    mean = means[index]
    if mean is None:
        return Cell("–")
    spread = f" ± {mean[1]:.1f}" if deviation and mean[1] is not None else ""
    others = [better * m[0] for m in means if m]
    best = len(others) > 1 and better * mean[0] == max(others)
    return Cell(tag("b", shown(mean[0])) + spread if best else shown(mean[0]) + spread, mean[0])


def _accuracy(groups: Sequence[Group]) -> list[str]:
    seen = [each.curve(lambda run: measured(enumerate(run.seen, 1))) for each in groups]
    final = [each.curve(lambda run: measured(enumerate(run.matrix[-1], 1)) if run.complete else []) for each in groups]
    lost = [
        each.curve(lambda run: measured(enumerate(metrics.forgotten(run.matrix), 1)) if run.complete else [])
        for each in groups
    ]
    charts = [
        (
            "All classes seen",
            line_chart(seen, x_label="tasks learned", y_label="%", ceiling=100),
            _BAND,
            "seen-accuracy",
        ),
        ("Each task at the end", line_chart(final, x_label="task", y_label="%", ceiling=100), "", "final-accuracy"),
        ("Forgetting of each task", line_chart(lost, x_label="task", y_label="points"), "", "forgetting"),
    ]
    return [figure(title, chart, note, name=name) for title, chart, note, name in charts if chart]


_BAND = "Means over seeds; bands: one standard deviation."


def _training(groups: Sequence[Group]) -> list[str]:
    """A chart for every recorded quantity, a line for every group."""
    names = list(dict.fromkeys(name for each in groups for run in each.runs for name in run.losses))
    shown = [(name, f"Loss: {name}", "loss") for name in names]
    shown += [("unlabeled_accuracy", "Accuracy on unlabeled images", "%"), ("lr", "Learning rate", "")]
    longest = max((run for each in groups for run in each.runs), key=lambda run: len(run.epochs))
    same = (
        len({run.config["epochs"] for each in groups for run in each.runs}) == 1
    )  # or tasks begin at different epochs
    parts, span = task_parts(longest) if same else [], epoch_span(longest)
    drawn = []
    for key, title, unit in shown:
        series = [each.curve(lambda run, key=key: run.curve(key)) for each in groups]  # type: ignore[misc]
        ceiling = 100 if unit == "%" else None
        chart = line_chart(series, x_label="epoch", y_label=unit, dividers=parts, span=span, ceiling=ceiling)
        if chart:
            drawn.append(figure(title, chart, name=f"curve-{key.replace('_', '-')}"))
    return drawn


def _memory(groups: Sequence[Group]) -> str:
    """A stacked bar per group, all on one scale, and the same in numbers."""
    parts = list(dict.fromkeys(part for each in groups for run in each.complete for part in run.memory_parts))
    groups = [each for each in groups if each.complete]
    means = [[statistics.mean(run.memory.get(p, 0) for run in each.complete) for p in parts] for each in groups]
    most = max(map(sum, means), default=0)
    if not most:
        return ""
    bars: list[str] = []
    rows: list[list[Cell | str]] = []
    for each, sizes in zip(groups, means, strict=True):
        pieces = [
            tag(
                "span",
                class_=f"piece {marks.style(i)}",
                style=f"--v:{size / most:.4f}",
                title=f"{part}: {scales.size(size)}",
            )
            for i, (part, size) in enumerate(zip(parts, sizes, strict=True))
        ]
        stack = tag("span", *pieces, class_="stack")
        bars.append(tag("div", tag("dt", text(each.name)), tag("dd", stack)))
        rows.append([each.name, *(Cell(scales.size(size), size) for size in [*sizes, sum(sizes)])])
    numbers = table(["setting", *parts, "sum"], rows, name="memory", sortable=True)
    content = tag("dl", *bars, class_="bars") + marks.legend(list(enumerate(parts)), kind="area") + numbers
    return figure("Where memory goes", content, "Peaks of each part, mean over seeds.", name="memory-split", wide=True)


def _run_table(records: Sequence[RunRecord], groups: Sequence[Group]) -> str:
    group_of = {id(run): each.name for each in groups for run in each.runs}
    rows = []
    for record in records:
        cells: list[Cell | str] = [record.folder.name, group_of[id(record)]]
        cells.append(Cell(text(record.config.get("seed")), float(record.config.get("seed", 0))))
        state = "complete" if record.complete else f"{record.finished} of {record.config['tasks']} tasks"
        cells.append(state)
        for value, shown, _ in _COLUMNS.values():
            number = value(record)
            if number is None:
                cells.append(Cell("–"))
            elif record.complete:
                cells.append(Cell(shown(number), number))
            else:
                cells.append(Cell(tag("i", shown(number))))  # of the tasks so far: not to be ranked
        rows.append(cells)
    headings = ["run", "setting", "seed", "state", *_COLUMNS]
    return figure("Every run", table(headings, rows, name="runs", sortable=True), name="every-run", wide=True)


def _differences(groups: Sequence[Group]) -> str:
    """All settings that differ, a column per group."""
    keys = list(groups[0].differing)
    if not keys:
        return ""
    rows = [[key, *(text(each.differing[key]) for each in groups)] for key in keys]
    headings = ["setting", *(each.name for each in groups)]
    return figure("What differs", table(headings, rows, name="differences"), name="differences", wide=True)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
