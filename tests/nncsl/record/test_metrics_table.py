"""``nncsl metrics``: the journal as a table that other programs read."""

import csv
import io

import pytest

from nncsl import cli
from nncsl.record.journal import Journal


@pytest.fixture
def folder(tmp_path):
    journal = Journal(tmp_path / "metrics.jsonl")
    journal.epoch(0, 0, lr=0.1, snn=1.5)
    journal.task(0, accuracy=[90.0, 0.0], seen_accuracy=90.0)
    journal.epoch(1, 0, lr=0.1, snn=1.25, nnd=0.5)
    journal.task(1, accuracy=[80.0, 70.0], seen_accuracy=75.0)
    return tmp_path


def test_one_row_per_line_and_the_union_of_columns(folder, capsys):
    assert cli.main(["metrics", str(folder)]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    names = ["kind", "task", "epoch", "lr", "snn", "accuracy_0", "accuracy_1", "seen_accuracy", "nnd"]
    assert [list(row) for row in rows] == [names] * 4
    assert [(row["kind"], row["task"], row["epoch"]) for row in rows] == [
        *(("epoch", "0", "0"), ("task", "0", "")),
        *(("epoch", "1", "0"), ("task", "1", "")),
    ]
    assert [row["nnd"] for row in rows] == ["", "", "0.5", ""]
    assert float(rows[3]["accuracy_1"]) == 70.0


def test_a_file_gets_the_same_text_and_replaces_an_older_one(folder, capsys):
    cli.main(["metrics", str(folder)])
    text = capsys.readouterr().out
    (folder / "metrics.csv").write_text("older")
    assert cli.main(["metrics", str(folder), "-o", str(folder / "metrics.csv")]) == 0
    assert (folder / "metrics.csv").read_text() == text
    assert sorted(path.name for path in folder.iterdir()) == ["metrics.csv", "metrics.jsonl"]


def test_another_folder_is_refused(tmp_path, capsys):
    assert cli.main(["metrics", str(tmp_path)]) == 2
    assert "expected the folder of a run" in capsys.readouterr().err


def test_a_run_that_has_not_finished_an_epoch_gives_the_header(tmp_path, capsys):
    (tmp_path / "metrics.jsonl").write_text("")
    assert cli.main(["metrics", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "kind,task,epoch\n"
