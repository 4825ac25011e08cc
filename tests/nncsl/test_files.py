"""Reading within bounds, and tables that no spreadsheet executes."""

import os
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from nncsl import files
from nncsl.errors import UserError


def test_only_regular_files_of_a_bounded_size_are_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "endless").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 40)
    for name in ("pipe", "endless", "folder", "loop", "huge", "missing", "n" * 300, "a\0b"):
        with pytest.raises(UserError) as error:
            files.read_text(tmp_path / name)
        assert name[:5] in str(error.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 100_000, b"9" * 5000, b"\xff\xfe"])
def test_damaged_json_is_one_line(tmp_path, content):
    (tmp_path / "it.json").write_bytes(content)
    with pytest.raises(UserError, match=r"it\.json can't be read"):
        files.read_json(tmp_path / "it.json")


def test_no_cell_of_text_begins_as_a_formula_does():
    rows = [{"a": "=1+1", "b": -1.5, "c": "-2.5e-3", "d": "-1+cmd", "=x": "\tx"}]
    header, cells = files.as_csv(rows, ["a", "b", "c", "d", "=x"]).splitlines()
    assert header == "a,b,c,d,'=x"
    assert cells == "'=1+1,-1.5,-2.5e-3,'-1+cmd,'\tx"


def test_names_that_are_not_utf8_can_be_written(tmp_path):
    files.write_text(tmp_path / "t", os.fsdecode(b"caf\xe9"))
    assert (tmp_path / "t").read_text() == "caf\\udce9"


def test_a_figure_shows_names_of_any_bytes(tmp_path):
    figure = Figure()
    figure.subplots().set_title(os.fsdecode(b"caf\xe9\x1b"))
    files.write_figure(tmp_path / "figure.png", figure, dpi=40)
    assert (tmp_path / "figure.png").stat().st_size > 100


def test_what_is_no_regular_file_is_not_replaced(tmp_path):
    """Written by root, /dev/null would become a file."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/null")
    for path in (tmp_path / "pipe", tmp_path / "device", tmp_path, Path()):
        with pytest.raises(UserError, match="not a regular file"):
            files.write_text(path, "text")
    assert (tmp_path / "pipe").is_fifo() and (tmp_path / "device").is_symlink()


def test_paths_that_lead_nowhere_are_named(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UserError, match="no usable path"):
        files.expanded(str(tmp_path / "loop"), absolute=True)
    with pytest.raises(UserError, match="no usable path"):
        files.expanded("~nobody-of-that-name/data")
