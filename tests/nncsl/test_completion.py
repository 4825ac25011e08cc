"""Completion as a person gets it: the script is loaded into a real shell, which is asked what could come next."""

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time

import pytest

from nncsl import cli
from nncsl.cli import completion
from nncsl.config import presets
from nncsl.data.sources import SOURCES
from nncsl.methods import METHODS

pytest.importorskip("shtab", reason="shtab is an optional dependency: pip install nncsl[completion]")

SHELLS = [
    pytest.param(name, marks=pytest.mark.skipif(shutil.which(name) is None, reason=f"{name} is not installed"))
    for name in ("bash", "zsh", "fish")
]


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    """A function from (shell, words so far, the last one unfinished) to the words offered."""
    folder = tmp_path_factory.mktemp("completion")
    (folder / "a-folder").mkdir()
    for shell in ("bash", "zsh", "fish"):
        (folder / f"nncsl.{shell}").write_text(completion.script(shell, cli.build_parser()))

    zsh = Zsh(folder) if shutil.which("zsh") else None

    def offered(shell, *words):
        if shell == "zsh":
            return zsh(["nncsl", *words])
        return {"bash": _bash, "fish": _fish}[shell](folder, ["nncsl", *words])

    yield offered
    if zsh is not None:
        zsh.close()


def _bash(folder, words):
    code = (
        "source nncsl.bash; COMP_WORDS=({words}); COMP_CWORD={last}; COMP_LINE='{line}'; COMP_POINT=${{#COMP_LINE}}; "
        "$(complete -p nncsl | sed 's/.*-F \\([^ ]*\\).*/\\1/') nncsl '{word}' '{before}'; "
        "printf '%s\\n' \"${{COMPREPLY[@]}}\""
    ).format(
        words=" ".join(f"'{word}'" for word in words),
        last=len(words) - 1,
        line=" ".join(words),
        word=words[-1],
        before=words[-2],
    )
    done = subprocess.run(["bash", "--norc", "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def _fish(folder, words):
    code = f"source nncsl.fish; complete -C '{' '.join(words)}'"
    environment = {**os.environ, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    done = subprocess.run(
        ["fish", "--no-config", "-c", code], cwd=folder, capture_output=True, text=True, env=environment, check=True
    )
    return {line.split("\t")[0] for line in done.stdout.splitlines()}


class Zsh:
    """zsh completes on a terminal only, so it gets one, and keeps it: its start takes seconds."""

    def __init__(self, folder):
        (folder / "_nncsl").write_text((folder / "nncsl.zsh").read_text())
        self._child, self._terminal = pty.fork()
        if self._child == 0:
            os.chdir(folder)
            os.execvpe("zsh", ["zsh", "-f", "-i"], {**os.environ, "TERM": "dumb"})
        prepare = f"stty cols 200 rows 200; fpath=({folder} $fpath); autoload -U compinit; compinit -u -D; "
        self._until_done(prepare + "setopt no_beep; bindkey '^I' list-choices; ")

    def __call__(self, words):
        shown = self._until_done(" ".join(words) + "\t\x15")  # Tab, then the line is dropped
        return set(re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", " ", shown).split())

    def close(self):
        os.close(self._terminal)
        os.waitpid(self._child, 0)

    def _until_done(self, keys, seconds=60.0):
        os.write(self._terminal, (keys + "print DO''NE\n").encode())
        text, end = "", time.monotonic() + seconds
        while "DONE" not in text and time.monotonic() < end:
            if select.select([self._terminal], [], [], 0.1)[0]:
                text += os.read(self._terminal, 65536).decode(errors="replace")
        assert "DONE" in text, text
        return text


@pytest.mark.parametrize("shell", SHELLS)
class TestOffered:
    def test_sub_commands(self, ask, shell):
        wanted = {"train", "eval", "metrics", "config", "data", "bank", "bench", "completion"}
        assert wanted <= ask(shell, "")

    def test_parts_of_a_sub_command(self, ask, shell):
        assert {"info", "verify", "export", "query"} <= ask(shell, "bank", "")
        assert {"list", "prepare", "show"} <= ask(shell, "data", "")

    def test_flags(self, ask, shell):
        offered = ask(shell, "train", "--")
        assert {"--preset", "--method", "--resume", "--tensorboard", "--set"} <= offered
        assert "--no-image" not in offered

    @pytest.mark.parametrize(
        ("before", "names"),
        [
            (["train", "--preset"], presets()),
            (["train", "--method"], METHODS),
            (["config", "--dataset"], SOURCES),
            (["data", "prepare"], SOURCES),
            (["bank", "query", "here", "1", "--role"], ["support", "replay", "unlabeled"]),
            (["completion"], ["bash", "zsh", "fish"]),
        ],
    )
    def test_names(self, ask, shell, before, names):
        assert set(names) <= ask(shell, *before, "")

    def test_folders(self, ask, shell):
        assert any(word.rstrip("/") == "a-folder" for word in ask(shell, "eval", "a-"))


def test_a_name_that_is_not_offered_still_gets_the_commands_own_error(capsys):
    completion.script("bash", cli.build_parser())
    assert cli.main(["train", "--preset", "nope"]) == 2
    assert "unknown preset 'nope'" in capsys.readouterr().err


def test_without_shtab_the_command_says_what_to_install(tmp_path):
    """In the other process a module that cannot be imported stands where shtab would be found."""
    (tmp_path / "shtab.py").write_text("raise ImportError('not installed')")
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    command = [sys.executable, "-m", "nncsl", "completion", "bash"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 2 and not done.stdout
    assert 'pip install "nncsl[completion]"' in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_name_can_not_execute_anything(monkeypatch):
    """Data sets and methods of one's own may have any name."""
    monkeypatch.setitem(METHODS, "$(touch owned)", METHODS["er"])
    monkeypatch.setitem(SOURCES, "`id`", SOURCES["digits"])
    for shell in ("bash", "zsh", "fish"):
        made = completion.script(shell, cli.build_parser())
        assert "touch owned" not in made and "`id`" not in made and "er-ace" in made
