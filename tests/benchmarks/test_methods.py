"""The costs of methods beside each other: every phase takes part, and more work costs more."""

import csv
from pathlib import Path

from nncsl.benchmarks import methods


def test_every_phase_is_measured_beside_the_reference(tmp_path):
    out = tmp_path / "methods.csv"
    assert methods.main(["--methods", "finetune", "lwf", "--rounds", "2", "--out", str(out)]) == 0
    with out.open() as file:
        rows = {row["method"]: row for row in csv.DictReader(file)}
    assert list(rows) == ["nncsl", "finetune", "lwf"]
    assert rows["nncsl"]["time of a step"] == rows["nncsl"]["memory"] == "1.00"
    assert rows["lwf"]["phases"] == "warm-up + train"
    assert int(rows["lwf"]["steps of a task"]) == 2 * int(rows["finetune"]["steps of a task"])
    assert float(rows["finetune"]["memory"]) < 0.5  # 8 images instead of 208
    assert all(float(row["time of a task"]) > 0 for row in rows.values())


def test_the_page_of_methods_has_what_is_recorded():
    with methods.RESULTS.open() as file:
        rows = list(csv.DictReader(file))
    page = (Path(__file__).parents[2] / "docs" / "methods.md").read_text()
    assert rows[0]["method"] == methods.REFERENCE
    for row in rows:
        cells = (f"`{row['method']}`", *(row[name] for name in list(row)[1:9]))
        assert f"| {' | '.join(cells)} |" in page
