"""What the page says of a run's data and of what it keeps; and where it can't be written."""

import json
import re
import shutil
import warnings
from pathlib import Path

import pytest

from nncsl import files, report
from nncsl.cli import main
from nncsl.errors import UserError
from nncsl.report import collect, ledger, protocol


def rows(markup):
    """The cells of a table's body, as text."""
    body = markup.split("<tbody>")[1].split("</tbody>")[0]
    return [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in body.split("</tr>")[:-1]]


def test_every_task_with_its_classes_images_labels_and_chance(runs):
    record = collect.collect(runs["er-0"])
    found = rows(protocol.tasks(record, list("0123456789")))
    assert [row[:3] + row[4:] for row in found[:2]] == [
        ["1", "0, 1", "2", "8", "50.0%"],
        ["2", "2, 3", "2", "8", "25.0%"],
    ]
    assert sum(int(row[3]) for row in found) == 1297
    page = report.write([runs["er-0"]], runs["er-0"] / "other.html").read_text()
    assert "chance: 10.0%" in page and 'data-name="tasks"' in page and 'data-name="ledger"' in page


def test_a_task_of_one_class_is_warned_of_on_top(runs, tmp_path):
    folder = shutil.copytree(runs["er-0"], tmp_path / "run")
    split = json.loads((folder / "tasks.json").read_text())
    split["tasks"][0]["classes"] = [1]
    split["tasks"][1]["classes"].insert(0, 0)
    (folder / "SHA256SUMS").unlink()  # a file is changed on purpose
    (folder / "tasks.json").write_text(json.dumps(split))
    top = report.write([folder]).read_text().split("<section")[0]
    assert "one class alone in task 1 (1)" in top
    assert "one class alone" not in report.write([runs["er-0"]], tmp_path / "other.html").read_text()


def test_the_ledger_has_bytes_of_what_is_kept(runs):
    """The one table of it; the network, which is kept as well, stands below."""
    page = ledger.ledger(collect.collect(runs["nncsl-0"]))
    kept = rows(page)
    assert [row[0] for row in kept] == list("12345") and kept[-1][1] == "2.56 kB"  # 40 images of 8x8 pixels
    assert "filled anew" in page and ">feature bank<" in page and re.search(r"the network \([\d.]+ [kM]B\)", page)
    assert ">feature bank<" not in ledger.ledger(collect.collect(runs["er-0"]))


def test_a_page_that_can_not_be_written_asks_for_another_place(runs, capsys):
    """Nobody can write there, not even root."""
    with pytest.raises(UserError, match="-o FILE"):
        report.write([runs["er-0"]], Path("/proc/report.html"))
    assert main(["report", str(runs["er-0"]), "-o", "/proc/report.html"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_usual_mistakes_are_not_cut_off(browser, runs):
    browser.open(report.write([runs["nncsl-0"]]), width=1280)
    for name in ("mistakes", "tasks", "ledger"):
        box = f"document.querySelector('table[data-name={name}]').parentElement"
        assert browser.run(f"{box}.scrollWidth <= {box}.clientWidth"), name


def test_class_names_in_any_script_make_no_warnings(tmp_path):
    from matplotlib.figure import Figure

    figure = Figure()
    figure.subplots().set_title("猫 と 犬, 고양이")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        files.write_figure(tmp_path / "figure.png", figure, dpi=40)
    assert (tmp_path / "figure.png").stat().st_size > 100
