"""The report of one run."""

from typing import Any

import numpy as np

from nncsl import config as configs
from nncsl import methods
from nncsl.config import build
from nncsl.data.sources import dataset_name
from nncsl.errors import UserError
from nncsl.record.remarks import remarks
from nncsl.record.snapshots import Snapshot, read_snapshot
from nncsl.report import ledger, marks, memory, paper, projections, protocol, scales, views
from nncsl.report.charts import Series, line_chart, measured, scatter, shaded_grid
from nncsl.report.collect import RunRecord, flat
from nncsl.report.heat import heat_table
from nncsl.report.html import Cell, figure, section, table, tag, text
from nncsl.report.page import page, tile

_NAMED_CLASSES = 12  # more can't be told apart as colored points
_TASK_LINES = 8  # more lines than that are a thicket
_NUMBERED_CLASSES = 20  # more make a matrix too wide for numbers


def report(record: RunRecord, opened: views.Opened | None = None) -> str:
    """The whole page. opened: the run's source and tasks, where they are at hand."""
    config = record.config
    title = f"{config['method']} on {dataset_name(config['dataset'])}"
    names = protocol.names_of(record, _class_names(record, opened))
    sections = [
        section("Accuracy", *_accuracy(record), name="accuracy"),
        section("Tasks and images", protocol.tasks(record, names), name="protocol"),
        section("Training", *training_charts(record), name="training"),
        section("What it recognizes", *_recognition(record), name="recognition"),
        section("Generated images", _generated(record), name="generated"),
        section("Memory", memory.split(record), ledger.ledger(record), name="memory"),
        section("Views", _views(record, opened), name="views"),
        section("Settings", _command(record), _settings(record), _versions(record), name="settings"),
    ]
    return page(title, _header(record, title) + protocol.warnings(record, names), sections)


def _class_names(record: RunRecord, opened: views.Opened | None) -> tuple[str, ...] | None:
    if opened is not None:
        return opened[0].class_names
    snapshot = read_snapshot(record.folder, record.finished - 1) if record.finished else None
    return snapshot.class_names if snapshot else None


def training_charts(record: RunRecord) -> list[str]:
    """Losses, accuracy on unlabeled images and learning rate over the epochs."""
    axis: dict[str, Any] = {"x_label": "epoch", "dividers": task_parts(record), "span": epoch_span(record)}
    losses = [Series(name, record.curve(name)) for name in record.losses]
    unlabeled = [Series("unlabeled accuracy", record.curve("unlabeled_accuracy"))]
    rate = [Series("learning rate", record.curve("lr"))]
    drawn = [
        ("Loss parts", line_chart(losses, y_label="loss", **axis), "losses", ""),
        (
            "Accuracy on unlabeled images",
            line_chart(unlabeled, y_label="%", ceiling=100, **axis),
            "unlabeled-accuracy",
            "Their labels serve for this curve alone.",
        ),
        ("Learning rate", line_chart(rate, y_label="", **axis), "learning-rate", ""),
    ]
    return [figure(title, chart, note, name=name) for title, chart, name, note in drawn if chart]


def epoch_span(record: RunRecord) -> tuple[float, float]:
    """From before the first epoch to the last one recorded."""
    return 0, max((x for x, _ in record.curve("lr")), default=1)


def task_parts(record: RunRecord) -> list[tuple[float, str]]:
    """Where each task begins on the axis of epochs."""
    each = int(record.config["epochs"])
    begun = sorted({line["task"] for line in record.epochs})
    return [(task * each, f"task {task + 1}") for task in begun]


def _header(record: RunRecord, title: str) -> str:
    config = record.config
    everything = getattr(methods.METHODS.get(config["method"]), "remembers_all", False)
    kept = "all labeled images" if everything else config.get("memory")
    facts = [f"{config['tasks']} tasks", f"{config.get('labels')} labels", f"memory {kept}"]
    facts += [f"teacher: {config.get('teacher_mode')}", f"seed {config.get('seed')}"]
    sizes = [len(classes) for classes in record.tasks]
    said = [] if record.complete else [_status(record)]
    said += remarks(config["method"], config.get("memory", 0), sizes, record.labeled, record.left_out)
    notes = "".join(tag("p", text(note), class_="status") for note in said)
    return tag("h1", text(title)) + tag("p", text(" · ".join(facts)), class_="facts") + notes + headline(record)


def _status(record: RunRecord) -> str:
    total = record.config["tasks"]
    return f"Not finished: {record.finished} of {total} tasks. Figures are of the tasks so far."


def headline(record: RunRecord) -> str:
    """The figures that people ask for first."""
    tiles = []
    known = paper.published(record.config)
    guessed = protocol.chance(record)
    chance = f"chance: {guessed:.1f}%" if guessed else ""
    beside = ", ".join(filter(None, [chance, f"paper: {with_deviation(*known)}" if known else ""]))
    if (accuracy := record.average_accuracy) is not None:
        tiles.append(tile("Average accuracy", f"{accuracy:.1f}%", beside, name="average_accuracy", number=accuracy))
    if (forgotten := record.forgetting) is not None:
        tiles.append(tile("Forgetting", f"{forgotten:.1f}", "points", name="forgetting", number=forgotten))
    if record.seconds is not None:
        rate = f"{record.images_per_second:.0f} images/s" if record.images_per_second else ""
        tiles.append(
            tile("Training time", scales.duration(record.seconds), rate, name="seconds", number=record.seconds)
        )
    if total := record.memory.get("total"):
        tiles.append(tile("Peak memory", scales.size(total), "whole process", name="peak_memory", number=total))
    return tag("dl", *tiles, class_="tiles")


def with_deviation(mean: float, deviation: float | None) -> str:
    return f"{mean:.1f}" + (f" ± {deviation:.1f}" if deviation is not None else "")


def _accuracy(record: RunRecord) -> list[str]:
    if not record.matrix:
        return [figure("Accuracy", tag("p", "No task is finished yet."), name="matrix")]
    count = len(record.matrix[0])
    lower = [[value if j <= i else None for j, value in enumerate(row)] for i, row in enumerate(record.matrix)]
    matrix = heat_table(
        lower,
        rows=[f"{i + 1}" for i in range(len(lower))],
        columns=[f"task {j + 1}" for j in range(count)],
        corner="after",
        name="accuracy-matrix",
        highest=[100.0] * len(lower),
    )
    seen = Series("seen accuracy", measured(enumerate(record.seen, 1)))
    overall = line_chart([seen], x_label="tasks learned", y_label="%", ceiling=100)
    each = [
        Series(f"task {j + 1}", measured((i + 1, row[j]) for i, row in enumerate(record.matrix) if i >= j))
        for j in range(count)
    ]
    lines = line_chart(each, x_label="tasks learned", y_label="%", ceiling=100) if 1 < count <= _TASK_LINES else ""
    average = record.average_incremental_accuracy
    mean = f"Average incremental accuracy: {average:.1f}%." if average is not None else record.unmeasured
    return [
        figure(
            "Accuracy matrix",
            matrix,
            f"Percent on each task's classes, a row after each task. {record.unmeasured}".rstrip(),
            name="matrix",
            wide=count > 8,
        ),
        figure("All classes seen", overall, mean, name="seen-accuracy"),
        figure("Each task", lines, "From when it was learned.", name="task-accuracy") if lines else "",
    ]


def _recognition(record: RunRecord) -> list[str]:
    """Where the test images lie after the first and the last task, and what is taken for what."""
    last, classes = record.finished - 1, sum(map(len, record.tasks))
    found = {task: read_snapshot(record.folder, task) for task in dict.fromkeys([0, last]) if task >= 0}
    kept = {task: snapshot for task, snapshot in found.items() if snapshot is not None}
    # A run that was continued knew fewer classes before.
    known = {task: len(snapshot.class_names) for task, snapshot in kept.items()}
    if known.get(last, classes) != classes or max(known.values(), default=0) > classes:
        raise UserError(
            f"{record.folder}: snapshots and tasks.json name other classes, or one is missing; copy it anew"
        )
    drawn = [_projections(record, task, snapshot) for task, snapshot in kept.items()]
    return [*drawn, _confusion(record, kept[last])] if last in kept else drawn


def _projections(record: RunRecord, task: int, snapshot: Snapshot) -> str:
    found = projections.embedding(record.folder, task, snapshot)
    if found is None:
        return ""
    points, labels = found
    met = [c for classes in record.tasks[: task + 1] for c in classes]
    if len(snapshot.class_names) <= _NAMED_CLASSES:
        groups, names = labels, list(snapshot.class_names)
        faded, by = [c not in met for c in range(len(names))], "class"
    else:
        task_of = {c: index for index, classes in enumerate(record.tasks) for c in classes}
        groups, names = np.array([task_of[int(c)] for c in labels]), [f"{i + 1}" for i in range(len(record.tasks))]
        faded, by = [index > task for index in range(len(names))], "task (there are too many classes)"
    label = f"t-SNE after task {task + 1}"
    chart = scatter(points, list(groups), names, faded, label=label, named=by == "class")
    chart += marks.legend(list(enumerate(names)), kind="point")
    note = f"t-SNE of {len(points)} test images, colored by {by}." + (" Faded: not learned yet." if any(faded) else "")
    return figure(f"Projections after task {task + 1}", chart, note, name=f"projections-{task + 1}")


def _confusion(record: RunRecord, snapshot: Snapshot) -> str:
    """Rows and columns in the order of the tasks, classes that were met alone."""
    order = [c for classes in record.tasks[: record.finished] for c in classes]
    counts, names = snapshot.confusion[np.ix_(order, order)], [snapshot.class_names[c] for c in order]
    if len(order) <= _NUMBERED_CLASSES:
        totals = counts.sum(axis=1).tolist()
        drawn = heat_table(
            counts.tolist(), rows=names, columns=names, corner="", name="confusion", highest=totals, decimals=0
        )
    else:
        drawn = shaded_grid(counts, names, label="confusion matrix: true classes down, predicted ones across")
    wrong = counts - np.diag(np.diag(counts))
    worst = [divmod(int(i), len(order)) for i in np.argsort(-wrong, axis=None, kind="stable")[:3]]
    rows = [
        (names[i], names[j], Cell(str(wrong[i, j]), float(wrong[i, j])), _percent(wrong[i, j] / counts[i].sum()))
        for i, j in worst
        if wrong[i, j]
    ]
    mistakes = table(["image of", "taken for", "times", "of its class"], rows, name="mistakes") if rows else ""
    note = "Test images: true class down, predicted class across."
    return figure(
        "Confusion matrix", drawn + mistakes, note, name="confusion", wide=10 < len(order) <= _NUMBERED_CLASSES
    )


def _percent(share: float) -> Cell:
    return Cell(f"{100 * share:.0f}%", float(share))


def _views(record: RunRecord, opened: views.Opened | None) -> str:
    try:
        kinds = views.tiles(record.folder, record.config, opened)
    except UserError as error:
        return figure("Views", tag("p", text(f"Not drawn, the data is not at hand: {error}")), name="views-sheet")
    return figure("One image as the network sees it", views.sheet(kinds), name="views-sheet", wide=True)


def _generated(record: RunRecord) -> str:
    """What a method that makes images of its own made after the last task, a row per class."""
    last = record.finished - 1
    snapshot = read_snapshot(record.folder, last) if last >= 0 else None
    if snapshot is None or not snapshot.samples:
        return ""
    made = {snapshot.class_names[c]: images[: views.EACH] for c, images in snapshot.samples.items()}
    rows = {name: list(map(views.data_uri, images)) for name, images in made.items()}
    title, note = f"Made after task {last + 1}", "Images that the method replays instead of stored ones."
    return figure(title, views.sheet(rows), note, name="generated-sheet", wide=True)


def _command(record: RunRecord) -> str:
    shown = record.command or "not recorded"
    return figure("Command", tag("pre", tag("code", text(shown))), name="command", wide=True)


def _settings(record: RunRecord) -> str:
    """All settings; those that differ from the preset of the data set stand out."""
    changed = _changed(record.config)
    rows = [
        tag("div", tag("dt", text(key)), tag("dd", text(_value(value))), class_="changed" if key in changed else None)
        for key, value in flat(record.config).items()
    ]
    note = "Bold: other than the data set's preset says." if changed else ""
    return figure("Configuration", tag("dl", *rows, class_="settings"), note, name="configuration", wide=True)


def _changed(config: dict[str, Any]) -> set[str]:
    if config["dataset"] not in configs.presets():
        return set()
    usual, ours = flat(build.plain(configs.load(config["dataset"]))), flat(config)
    filled_in = ("data_dir", "cache_dir", "head_outputs")
    return {key for key, _, _ in build.differences(usual, ours) if key in ours and key not in filled_in}


def _versions(record: RunRecord) -> str:
    found = (record.summary or {}).get("versions")
    if not found:
        return ""
    rows = [tag("div", tag("dt", text(name)), tag("dd", text(value))) for name, value in found.items()]
    return figure("Versions", tag("dl", *rows, class_="settings"), name="versions", wide=True)


def _value(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(_value, value))
    return "–" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
