"""``nncsl predict`` as it is typed: real processes, files, exit codes."""

import csv
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image

import nncsl
from nncsl import cli
from nncsl.files import harmless
from nncsl.use import pictures


def predict(*words):
    return subprocess.run(
        [sys.executable, "-m", "nncsl", "predict", *map(str, words)],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "120"},
    )


def test_folders_files_and_what_can_not_be_read(trained, files, tmp_path):
    """Everything that can be read is predicted, in sorted order; what can't is named, and the exit code says so."""
    folder = tmp_path / "images"
    (folder / "b").mkdir(parents=True)
    for number in range(3):
        shutil.copy(files[number], folder / f"{2 - number}.png")
    shutil.copy(files[3], folder / "b" / "inner.PNG")
    (folder / "broken.jpg").write_bytes(b"no image")
    (folder / "notes.txt").write_text("not an image")
    done = predict(trained(), folder, files[4], tmp_path / "absent.png", "--top", 2, "--csv", tmp_path / "t.csv")
    assert done.returncode == 1
    names = [line.split(": ")[0] for line in done.stdout.splitlines()]
    assert names == [*(str(folder / name) for name in ("0.png", "1.png", "2.png", "b/inner.PNG")), str(files[4])]
    errors = done.stderr.splitlines()
    assert len(errors) == 3 and "broken.jpg" in errors[0] and "absent.png" in errors[1]
    assert "2 of 7 files" in errors[2]
    rows = list(csv.DictReader((tmp_path / "t.csv").open()))
    assert [row["image"] for row in rows] == names
    expected = nncsl.load(trained(), device="cpu").predict([files[2], files[1], files[0], files[3], files[4]])
    assert [row["class_1"] for row in rows] == expected.names
    assert [float(row["probability_2"]) for row in rows] == [round(best[1][1], 6) for best in expected.top(2)]


def test_many_images_and_a_clean_end(trained, files):
    done = predict(trained(), files[0].parent, files[0].parent)
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 1000 and not done.stderr


def test_neighbors_and_their_sheet(trained, files, tmp_path, capsys):
    target = tmp_path / "sheets" / "s.png"
    words = ["predict", str(trained()), *map(str, files[:3]), "--by", "neighbors", "--sheet", str(target)]
    assert cli.main([*words, "--csv", str(tmp_path / "t.csv")]) == 0
    lines = capsys.readouterr().out.splitlines()
    found = nncsl.load(trained(), device="cpu").predict(files[:3], by="neighbors")
    assert len(lines) == 6 and f"(image {found.neighbors[0][0].id})" in lines[1]
    pixels = np.asarray(Image.open(target).convert("L"))
    assert min(pixels.shape) > 200 and pixels.std() > 10
    (row, *_) = csv.DictReader((tmp_path / "t.csv").open())
    assert int(row["neighbor_1"]) == found.neighbors[0][0].id and row["neighbor_1_class"] == found.neighbors[0][0].name
    assert float(row["neighbor_5_weight"]) <= float(row["neighbor_1_weight"])


def test_a_method_that_decides_otherwise_says_so(trained, files, capsys):
    assert cli.main(["predict", str(trained("icarl")), str(files[0])]) == 0
    assert "icarl decides by the nearest mean" in capsys.readouterr().err
    assert cli.main(["predict", str(trained()), str(files[0])]) == 0
    assert not capsys.readouterr().err


def test_mistakes_end_with_one_line(trained, files, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    for words, said in (
        ([trained(), files[0], "--sheet", "s.png"], "--by neighbors"),
        ([trained(), files[0], "--top", "0"], "--top 0"),
        ([trained(), tmp_path / "empty"], "no image in there"),
        ([tmp_path / "empty", files[0]], "is not a run"),
        ([trained(), files[0], "--device", "tpu"], "device='tpu'"),
        ([trained("finetune"), files[0], "--by", "neighbors"], "use --by head"),
    ):
        assert cli.main(["predict", *map(str, words)]) == 2
        error = capsys.readouterr().err
        assert said in error and len(error.splitlines()) == 1


def test_a_path_that_no_file_system_takes_is_a_file_that_can_not_be_read():
    path = Path("x/" * 3000)
    assert pictures.listed([path]) == [path]


def test_a_spreadsheet_executes_nothing(trained, files, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("=1+1.png", "+x.png", "@sum.png", "plain.png"):
        shutil.copy(files[0], name)
    assert cli.main(["predict", str(trained()), "=1+1.png", "+x.png", "@sum.png", "plain.png", "--csv", "t.csv"]) == 0
    names = [row["image"] for row in csv.DictReader((tmp_path / "t.csv").open())]
    assert names == ["'=1+1.png", "'+x.png", "'@sum.png", "plain.png"]
    assert harmless("-1") == "'-1"
