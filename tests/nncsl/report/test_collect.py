"""Run folders as the report reads them: finished, under way, damaged, and folders that are none."""

import json
import shutil

import pytest

from nncsl import report
from nncsl.cli import main
from nncsl.errors import UserError
from nncsl.report.collect import collect, flat


def test_a_finished_run_gives_what_its_summary_says(runs):
    record, said = collect(runs["nncsl-0"]), json.loads((runs["nncsl-0"] / "summary.json").read_text())
    assert record.complete and record.finished == 5
    for name in ("average_accuracy", "average_incremental_accuracy", "forgetting", "seconds"):
        assert getattr(record, name) == pytest.approx(said[name])
    assert record.memory == said["peak_memory"]
    assert record.losses == ["snn", "mem", "lin", "nnd"]
    assert [x for x, _ in record.curve("snn")] == list(range(1, 11))
    assert [x for x, _ in record.curve("nnd")] == list(range(3, 11))  # there is no teacher in the first task


def test_a_killed_run_gives_what_there_is(killed, tmp_path):
    record = collect(killed)
    assert not record.complete and 1 <= record.finished < 5
    assert record.seconds > 0 and record.memory["student"] > 0
    assert record.average_accuracy == pytest.approx(sum(record.matrix[-1][: record.finished]) / record.finished)
    page = report.write([killed], tmp_path / "killed.html").read_text()
    assert f"Not finished: {record.finished} of 5 tasks" in page and 'id="projections-1"' in page


def test_a_run_that_has_just_begun_gives_its_settings(runs, tmp_path):
    for name in ("config.yaml", "tasks.json"):
        shutil.copy(runs["nncsl-0"] / name, tmp_path)
    page = report.write([tmp_path]).read_text()
    assert "No task is finished yet" in page and "bank_views" in page
    both = report.write([tmp_path, runs["er-0"]], tmp_path / "both.html").read_text()
    assert "0 of 5 tasks" in both


def test_what_is_no_run_is_named(runs, tmp_path):
    with pytest.raises(UserError, match=r"absent is not a folder"):
        collect(tmp_path / "absent")
    with pytest.raises(UserError, match=r"is not a run: no config\.yaml in it"):
        collect(tmp_path)
    (tmp_path / "config.yaml").write_text("just words")
    with pytest.raises(UserError, match="not the configuration of a run"):
        collect(tmp_path)
    broken = tmp_path / "broken"
    shutil.copytree(runs["er-0"], broken)
    (broken / "summary.json").write_text('{"accuracy')
    with pytest.raises(UserError, match=r"summary\.json can't be read"):
        collect(broken)


def test_a_value_that_is_no_number_leaves_a_gap(runs, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(runs["er-0"], folder)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines[1]["lin"] = float("nan")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "SHA256SUMS").unlink()  # it was changed on purpose
    assert [x for x, _ in collect(folder).curve("lin")] == [1, *range(3, 11)]
    assert "nan" not in report.write([folder, runs["er-1"]], tmp_path / "both.html").read_text().split("<script>")[0]


def test_settings_are_flattened_as_flags_take_them():
    assert flat({"a": 1, "network": {"width": 8, "blocks": [1, 2]}}) == {
        "a": 1,
        "network.width": 8,
        "network.blocks": [1, 2],
    }


def test_the_command_writes_where_it_is_told_and_says_where(runs, tmp_path, capsys):
    target = tmp_path / "new" / "comparison.html"
    assert main(["report", *map(str, runs.values()), "-o", str(target)]) == 0
    assert capsys.readouterr().out.strip() == str(target)
    assert target.read_text().startswith("<!doctype html>")
    assert main(["report", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "is not a run" in said and len(said.splitlines()) == 1
    (tmp_path / "file").write_text("")
    assert main(["report", str(runs["er-0"]), "-o", str(tmp_path / "file" / "report.html")]) == 2
    assert "choose another -o" in capsys.readouterr().err


def test_html_files_among_the_runs_are_passed_over(runs, tmp_path):
    """As in ``nncsl report runs/* -o runs/all.html``, the second time."""
    (tmp_path / "all.html").write_text("an older report")
    assert (
        "4 runs on digits" in report.write([tmp_path / "all.html", *runs.values()], tmp_path / "all.html").read_text()
    )
    with pytest.raises(UserError, match="no run was named"):
        report.write([tmp_path / "all.html"])
