"""Whatever a name contains, the terminal shows it and does nothing else with it."""

import io
import re
import sys
from pathlib import Path

import pytest
from rich.table import Table

import nncsl
from nncsl import cli
from nncsl.errors import visible
from nncsl.terminal import Reporter, Screen, guarded_output

HOSTILE = "\x1b]0;owned\x07\x1b[2J\u202egnp.exe\r\x9b1m\udcff"
SHOWN = "\\x1b]0;owned\\x07\\x1b[2J\\u202egnp.exe\\r\\x9b1m\\udcff"
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]")


def test_control_characters_are_shown():
    assert visible(HOSTILE) == SHOWN
    assert visible("plain text,\n\tälter, 画像, emoji 🙂") == "plain text,\n\tälter, 画像, emoji 🙂"


def test_everything_printed_passes_the_guard(capsys):
    with guarded_output():
        print(HOSTILE)
        print(HOSTILE, file=sys.stderr)
    assert capsys.readouterr() == (SHOWN + "\n", SHOWN + "\n")


def test_a_terminal_that_knows_few_characters_shows_the_others(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    with guarded_output():
        print("画像")
        sys.stdout.flush()
    assert stream.buffer.getvalue() == b"\\u753b\\u50cf\n"


def test_rich_may_color_and_what_it_shows_may_not(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setenv("FORCE_COLOR", "1")
    with guarded_output():
        table = Table("name")
        table.add_row("\x1b[2J\u202egpj")
        Screen().print(table)
        with Reporter(1) as reporter:
            reporter.say("class \x1b[2J")
            reporter.table("results, in \x1b[2J", [("a", "\x1b[2J")])
    said = stream.getvalue()
    assert "\x1b[2J" not in said and "\u202e" not in said
    assert said.count("\\x1b") >= 3  # a narrow table cuts its title
    assert "\x1b[" in said  # its own colors


@pytest.mark.parametrize(
    "words", [["eval", "no\x1b[2Jrun"], ["report", "\u202egpj"], ["config", "--set", "\x1b=1"], ["\x1b"]]
)
def test_errors_show_control_characters(words, capsys):
    try:
        code = cli.main(words)
    except SystemExit as error:
        code = error.code
    assert code == 2
    said = capsys.readouterr().err
    assert said and not RAW.search(said)


def test_a_name_can_not_forge_a_line_of_ours(capsys, tmp_path):
    image = tmp_path / "a\nnncsl: all is well"
    assert cli.main(["predict", str(tmp_path), str(image)]) == 2
    assert not any(line.startswith("nncsl: all") for line in capsys.readouterr().err.splitlines())


def test_all_of_the_package_prints_by_the_guarded_console():
    """A plain rich Console writes past the guard's escaping, or has its colors escaped."""
    package = Path(nncsl.__file__).parent
    sources = [path for path in package.rglob("*.py") if "benchmarks" not in path.parts]
    for path in sources:
        if path.name != "terminal.py":
            made = re.findall(r"\bConsole\(|\bProgress\((?!.{,200}console=)", re.sub(r"\s+", " ", path.read_text()))
            assert not made, f"{path}: use nncsl.terminal.Screen instead of {made}"
