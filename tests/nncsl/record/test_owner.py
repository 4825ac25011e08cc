"""One process trains in a folder, another is told who; and links in it lead nowhere."""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from nncsl import cli, runs
from nncsl.errors import UserError
from nncsl.record import owner
from nncsl.report.collect import collect
from tests.nncsl.record.conftest import TINY, tiny


def settings():
    return [word for each in TINY for word in ("--set", each)]


@pytest.fixture
def busy(tmp_path):
    """A folder in which another process trains."""
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "nncsl", "train", "--quiet", "--no-report", "--out", str(folder), *settings()]
    process = subprocess.Popen([*command, "--set", "epochs=500"], stdout=subprocess.DEVNULL)
    while not (folder / "checkpoint" / "state.pt").exists():
        assert process.poll() is None
        time.sleep(0.02)
    yield folder, process
    process.kill()
    process.wait()


def test_a_second_owner_is_told_of_the_first_and_takes_over_when_it_is_dead(busy, capsys):
    folder, process = busy
    for arguments in (["--resume", str(folder)], ["--out", str(folder), *settings()]):
        assert cli.main(["train", "--quiet", *arguments]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
    assert cli.main(["train", "--quiet", "--resume", str(folder)]) == 2
    said = capsys.readouterr().err
    assert f"process {process.pid} on {socket.gethostname()} since 20" in said and str(folder) in said
    assert not collect(folder).complete  # who reads needs no lock
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert (folder / owner.LOCK).exists()
    taken = owner.Owner()
    taken.take(folder)
    with pytest.raises(owner.OwnedError, match=f"process {os.getpid()} "):
        runs.resume(folder, [])
    taken.leave()
    assert not (folder / owner.LOCK).exists()


LINKED = [".summary.new.json", ".report.new.html", "metrics.jsonl", "LOCK", "checkpoint/.state.new.pt", "bank/LOCK"]
LINKED += ["bank/CURRENT.tmp", "bank/shards/000002-unlabeled-0000.h5.tmp", "snapshots/.task-2.new.npz", "report.html"]


def test_links_are_replaced_and_never_followed(run, tmp_path):
    """Names that a run writes, or that earlier versions wrote to on the way, lead to somebody's file."""
    mine = tmp_path / "thesis.txt"
    journal = (run / "metrics.jsonl").read_text()
    for name in LINKED:
        mine.write_text(journal if name == "metrics.jsonl" else "mine")
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(mine.with_name(f"{name.replace('/', '-')}.txt"))
        mine.rename(mine.with_name(f"{name.replace('/', '-')}.txt"))
    before = {path: path.read_text() for path in tmp_path.glob("*.txt")}
    runs.resume(run, [], quiet=True, previous=True)
    runs.write_report(run)
    assert len(before) == len(LINKED) and before == {path: path.read_text() for path in tmp_path.glob("*.txt")}
    assert not [path for path in run.rglob("*") if path.is_symlink()]


def test_a_linked_folder_is_refused(tmp_path):
    folder, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    (folder / "checkpoint").symlink_to(elsewhere)
    with pytest.raises(UserError, match="checkpoint is a link"):
        runs.start(tiny(), folder, quiet=True)
    assert not list(elsewhere.iterdir()) and not (folder / owner.LOCK).exists()


def test_what_killed_processes_left_is_removed(tmp_path):
    folder = tmp_path / "run"
    (folder / "checkpoint").mkdir(parents=True)
    left = [folder / ".config.0123456789abcdef.new.yaml", folder / "checkpoint" / ".state.0123456789abcdef.new.pt"]
    for path in left:
        path.write_text("half")
    taken = owner.Owner()
    taken.take(folder)
    taken.leave()
    assert not any(path.exists() for path in left)
