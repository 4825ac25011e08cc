"""Columns and figure of bytes kept, from runs on digits that were made for it."""

import re
from dataclasses import replace

import pytest

from nncsl import runs
from nncsl.benchmarks.accuracy import __main__ as accuracy
from nncsl.benchmarks.accuracy import bytes_figure, campaign, full_size, records, tables
from nncsl.config import build
from tests.benchmarks.campaigns import SMALL

IMAGE = 64 + 16  # a digit, its number and label
FEW = SMALL | {"tasks": 2, "warmup_epochs": 1, "unlabeled_batch": 160, "unlabeled_fraction": 0.2}
RUNS = {
    "10%-copy": {"method": "nncsl", "teacher_mode": "model", "labels": "10%", "memory": 40},
    "10%-er-500": {"method": "er", "labels": "10%", "memory": 500},
    "10%-er-40": {"method": "er", "labels": "10%", "memory": 40},
    "20%-er-40": {"method": "er", "labels": "20%", "memory": 40},
}


@pytest.fixture
def recorded(write, tmp_path):
    """A campaign with bytes: three runs of one seed, and one of two."""
    write("few-bytes", runs=RUNS, settings=FEW, seeds=[3, 4], title="digits, accuracy against bytes", bytes=True)
    for entry in campaign.read("few-bytes").entries:
        if entry.seed == 3 or entry.name == "10%-er-40":
            summary = runs.start(
                entry.config, tmp_path / "runs" / f"{entry.name}-{entry.seed}", quiet=True, report=False
            )
            made = {"config": build.plain(entry.config), "summary": summary, "machine": {"threads": 1}}
            records.add(entry.file, {"run": entry.name, "seed": entry.seed} | made)
    return campaign.read("few-bytes")


def test_runs_are_shown_by_the_bytes_that_they_kept(recorded, tmp_path, capfd):
    header, rows = tables.rows_of(recorded)
    own, full = header.index("kept MB"), header.index("kept MB, ResNet-18")
    by_run = {row[0]: row for row in rows}
    copied = recorded.records("10%-copy")[3]
    parts = copied["summary"]["kept"]
    assert by_run["10%-copy"][own] == f"{parts['total'] / 1e6:.1f}"
    assert by_run["10%-copy"][full] == "47.1"
    assert by_run["10%-er-40"][full] == "0.0 ± 0.0"
    assert full_size.kept(copied)["teacher"] > 45e6 > 1e6 > parts["teacher"]

    points = {(p.method, p.labels, p.images): p for p in bytes_figure.points(recorded)}
    labeled = points.keys() - {("er", "10%", 40), ("er", "20%", 40), ("nncsl, copied teacher", "10%", 40)}
    ((_, _, all_labeled),) = labeled  # 500 were asked for, a tenth of 1,297 have labels
    assert 120 <= all_labeled <= 140 and points["er", "10%", all_labeled].megabytes == all_labeled * IMAGE / 1e6
    two = [record["summary"]["average_accuracy"] for record in recorded.records("10%-er-40").values()]
    point = points["er", "10%", 40]
    assert point.megabytes == 40 * IMAGE / 1e6 and point.accuracy == pytest.approx(sum(two) / 2)
    assert point.deviation == pytest.approx(abs(two[0] - two[1]) / 2**0.5)
    assert points["er", "20%", 40].deviation == 0

    capfd.readouterr()
    assert accuracy.main(["plot", "few-bytes"]) == 0
    said = capfd.readouterr().out.splitlines()
    assert said[1:] == [str(tmp_path / "results" / name) for name in ("few-bytes.svg", "bytes.svg")]
    drawn = (tmp_path / "results" / "few-bytes.svg").read_text()
    texts = re.findall(r"<!-- (.*) -->", drawn)
    wanted = ["nncsl, copy 40", "er 40", f"er {all_labeled}", "digits, 10% labels", "digits, 20% labels"]
    assert set(wanted) <= set(texts) and texts.count("er 40") == 2  # once in each panel
    assert (tmp_path / "results" / "bytes.svg").read_text() == drawn  # drawn again, the same
    beside = bytes_figure.draw([recorded, replace(recorded, title="again, ...")], tmp_path / "two.svg")
    assert {"again, 10% labels", *wanted} <= set(re.findall(r"<!-- (.*) -->", beside.read_text()))


def test_what_is_not_recorded_has_no_figure_and_no_columns_are_shown_unasked(write, tmp_path, capfd):
    write("few-bytes", bytes=True)
    assert accuracy.main(["plot", "few-bytes"]) == 0
    assert "few-bytes: no bytes are recorded" in capfd.readouterr().out
    assert not list(tmp_path.rglob("*.svg"))
    write("plain")
    assert "kept MB" not in tables.rows_of(campaign.read("plain"))[0]
