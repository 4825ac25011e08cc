"""How a report comes to be: with a run, later, again; and what happens when it can't."""

import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch

from nncsl import report
from nncsl.cli import main
from nncsl.record.snapshots import keep_snapshot, read_snapshot
from nncsl.report.projections import embedding
from tests.nncsl.report.conftest import train_command


def test_training_ends_with_a_report_and_keeps_its_command(runs):
    page = (runs["nncsl-0"] / "report.html").read_text()
    assert page.startswith("<!doctype html>") and len(page) < 1_000_000
    typed = (runs["nncsl-0"] / "command.txt").read_text()
    assert typed.split()[:2] == ["nncsl", "train"] and typed.split()[2:] == train_command(runs["nncsl-0"])[4:]
    assert not (runs["er-0"] / "report.html").exists()  # nobody asked for one


def test_no_report_means_none_and_resuming_keeps_the_first_command(tmp_path, capsys):
    folder = tmp_path / "run"
    assert main([*train_command(folder, "--no-report", "--tasks", "1")[3:]]) == 0
    assert not (folder / "report.html").exists()
    before = (folder / "command.txt").read_text()
    (folder / "metrics.jsonl").rename(folder / "aside")
    (folder / "metrics.jsonl").mkdir()  # in the way of every report
    capsys.readouterr()
    assert main(["train", "--resume", str(folder)]) == 0
    complete, failed = capsys.readouterr().out.splitlines()
    assert complete == f"{folder} is complete"
    assert failed.startswith("no report") and failed.endswith(f"nncsl report {folder}")
    (folder / "metrics.jsonl").rmdir()
    (folder / "aside").rename(folder / "metrics.jsonl")
    assert main(["train", "--resume", str(folder)]) == 0
    assert f"report: {folder / 'report.html'}" in capsys.readouterr().out and (folder / "report.html").exists()
    assert (folder / "command.txt").read_text() == before


def test_projections_are_computed_once(runs):
    """Drawn again, nothing of scikit-learn is even loaded; and the page is the same to the byte."""
    folder = runs["nncsl-0"]
    first = report.write([folder]).read_bytes()
    code = f"import sys; from pathlib import Path; from nncsl import report; report.write([Path({str(folder)!r})])"
    shown = subprocess.run(
        [sys.executable, "-c", code + "; print('sklearn' in sys.modules)"], capture_output=True, text=True
    )
    assert shown.stdout == "False\n", shown.stderr
    assert (folder / "report.html").read_bytes() == first


def test_other_projections_are_not_mistaken_for_cached_ones(tmp_path):
    labels = torch.arange(10).repeat(6)
    names = tuple("abcdefghij")
    generator = torch.Generator().manual_seed(0)
    centers = torch.randn(10, 16, generator=generator)
    found = []
    for noise in (0.1, 0.2, 0.1):
        vectors = centers[labels] + noise * torch.randn(60, 16, generator=torch.Generator().manual_seed(1))
        keep_snapshot(tmp_path, 0, vectors, labels, labels, names)
        points, shown = embedding(tmp_path, 0, read_snapshot(tmp_path, 0))
        assert points.shape == (60, 2) and shown.tolist() == labels.tolist()
        found.append(points)
    assert not np.array_equal(found[0], found[1]) and np.array_equal(found[0], found[2])
    (tmp_path / "snapshots" / "task-1-tsne.npz").write_bytes(b"damaged")
    assert np.array_equal(embedding(tmp_path, 0, read_snapshot(tmp_path, 0))[0], found[0])


def test_a_collapsed_network_has_nothing_to_show(tmp_path):
    labels = torch.arange(10).repeat(6)
    keep_snapshot(tmp_path, 0, torch.ones(60, 16), labels, labels, tuple("abcdefghij"))
    assert embedding(tmp_path, 0, read_snapshot(tmp_path, 0)) is None


def test_views_are_drawn_from_what_was_kept_when_the_data_is_gone(runs, tmp_path):
    moved = tmp_path / "moved"
    shutil.copytree(runs["nncsl-0"], moved)
    text = (moved / "config.yaml").read_text().replace("dataset: digits", "dataset: folder:/nowhere")
    (moved / "config.yaml").write_text(text)
    (moved / "SHA256SUMS").unlink()  # it was changed on purpose
    assert report.write([moved]).read_text().count('src="data:image/png') >= 17
    (moved / "snapshots" / "views.json").unlink()
    page = report.write([moved]).read_text()
    assert "the data is not at hand" in page and "/nowhere" in page and "data:image/png" not in page


@pytest.mark.parametrize("classes", [30])
def test_many_classes_still_make_a_page(browser, runs, tmp_path, classes):
    """More classes than can be colored or numbered: points by task, a shaded matrix; nothing overflows."""
    folder = tmp_path / "run"
    shutil.copytree(runs["nncsl-0"], folder)
    (folder / "SHA256SUMS").unlink()  # files are changed on purpose
    each = classes // 5
    tasks = [{"classes": list(range(i * each, (i + 1) * each)), "labeled": []} for i in range(5)]
    (folder / "tasks.json").write_text(f'{{"tasks": {tasks}}}'.replace("'", '"'))
    labels = torch.arange(classes).repeat(8)
    vectors = torch.eye(classes)[labels] + 0.1 * torch.randn(
        len(labels), classes, generator=torch.Generator().manual_seed(0)
    )
    wrong = torch.where(torch.arange(len(labels)) % 9 == 0, (labels + 1) % classes, labels)
    names = tuple(f"a rather long class name {i}" for i in range(classes))
    for task in (0, 4):
        keep_snapshot(folder, task, vectors, wrong, labels, names)
    browser.open(report.write([folder]), width=390, phone=True)
    assert browser.complaints == [] and browser.run("document.documentElement.scrollWidth") <= 390
    assert browser.run("document.querySelectorAll('#projections-5 .group').length") == 5
    assert browser.run("document.querySelectorAll('#confusion svg.grid rect[data-value]').length") > classes
