"""Accuracy against time, of runs that are only written down."""

import re

from nncsl.benchmarks.accuracy import __main__ as accuracy
from nncsl.benchmarks.accuracy import campaign, frontier_figure, tables
from tests.benchmarks.campaigns import entry_recorded

# Seconds and accuracy: `slow` is reached by `quick`, which is cheaper.
TRIED = {"best": (30.0, 60.0), "quick": (10.0, 50.0), "slow": (20.0, 45.0), "level": (40.0, 60.0)}


def recorded(write, processors=None):
    runs = {run: {"epochs": number} for number, run in enumerate(TRIED, 1)}  # by its settings a run is known
    write("few", runs=runs, seeds=[100], seconds=True, title="tried")
    for entry in campaign.read("few").entries:
        seconds, accuracy_ = TRIED[entry.name]
        machine = {"processor": (processors or {}).get(entry.name, "usual"), "threads": 1}
        summary = {"seed": 100, "average_accuracy": accuracy_, "average_incremental_accuracy": 0, "forgetting": 0}
        summary["peak_memory"] = {"total": 0, "teacher": 0, "bank": 0}
        entry_recorded(entry, summary=summary, machine=machine, cpu_seconds=seconds)
    return campaign.read("few")


def test_the_line_joins_what_nothing_cheaper_reaches(write):
    points = frontier_figure.points(recorded(write))
    assert [(point.text, point.x, point.y) for point in points] == [
        ("quick", 10.0, 50.0),
        ("slow", 20.0, 45.0),
        ("best", 30.0, 60.0),
        ("level", 40.0, 60.0),
    ]
    assert [point.text for point in points if point.color == frontier_figure.BEST] == ["quick", "best"]


def test_times_of_another_processor_have_no_place(write):
    points = frontier_figure.points(recorded(write, {"quick": "another"}))
    assert [point.text for point in points if point.color == frontier_figure.BEST] == ["slow", "best"]


def test_plot_draws_every_run_with_its_name_and_the_table_has_the_time(write, tmp_path, capfd):
    shown = recorded(write)
    assert accuracy.main(["plot", "few"]) == 0
    assert str(tmp_path / "results" / "few.svg") in capfd.readouterr().out
    drawn = (tmp_path / "results" / "few.svg").read_text()
    assert {*TRIED, "tried"} <= set(re.findall(r"<!-- (.*) -->", drawn))
    header, rows = tables.rows_of(shown)
    assert {row[0]: row[header.index("CPU s")] for row in rows}["slow"] == "20.0"


def test_one_run_alone_makes_no_figure(write, tmp_path, capfd):
    write("few", runs=["csl"], seeds=[100], seconds=True)
    assert accuracy.main(["plot", "few"]) == 0
    assert "few: no times are recorded" in capfd.readouterr().out and not list(tmp_path.rglob("*.svg"))
