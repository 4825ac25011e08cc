"""Damage to any file of a run is noticed by name, and a run goes on from the checkpoint before a damaged one."""

import json
import os
import signal

import numpy as np
import pytest

from nncsl import cli, runs
from nncsl.benchmarks.forked import learned
from nncsl.errors import DamagedError, UserError
from nncsl.methods.nncsl import NNCSL
from nncsl.record import checkpoint, checksums, journal, remembered, snapshots
from nncsl.report.collect import collect
from tests.nncsl.record.conftest import tiny


def flip(path, at=0.5):
    content = bytearray(path.read_bytes())
    content[int(at * len(content))] ^= 1
    path.write_bytes(content)


def test_the_list_is_what_sha256sum_takes(ended):
    lines = (ended / checksums.NAME).read_text().splitlines()
    named = [line[66:] for line in lines[:-1]]
    assert named == sorted(named) and lines[-1].startswith("# ")
    there = {path.relative_to(ended).as_posix() for path in ended.rglob("*") if path.is_file()}
    assert set(named) == {name for name in there if not name.startswith("bank/")} - {checksums.NAME}
    for name in named:
        checksums.check(ended, name)


READERS = {
    "config.yaml": lambda run: cli.main(["eval", str(run)]),
    "tasks.json": lambda run: collect(run),
    "summary.json": lambda run: runs.resume(run, []),
    "command.txt": lambda run: collect(run),
    "metrics.jsonl": lambda run: journal.table(run),
    "checkpoint/state.pt": lambda run: cli.main(["eval", str(run)]),
    "snapshots/task-1.npz": lambda run: snapshots.read_snapshot(run, 0),
    checksums.NAME: lambda run: collect(run),
}


@pytest.mark.parametrize("name", READERS)
def test_a_flipped_bit_is_one_line_with_the_files_name(run, capsys, name):
    flip(run / name, 0.3)
    try:
        code = READERS[name](run)
        said = capsys.readouterr().err
    except DamagedError as error:
        code, said = error.exit_code, f"{error}\n"
    assert code == 3 or (code == 2 and "config.yaml" in said)
    assert str(run / name) in said and "Restore it from a copy" in said and said.count("\n") == 1


ENDLESS = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "hole": lambda path: (path.touch(), os.truncate(path, 1 << 36)),
}


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", [*READERS, "memory"])
def test_nobody_waits_for_the_checksum_of_what_never_ends(run, capsys, name):
    path = next((run / name).iterdir()) if name == "memory" else run / name
    for spoil in ENDLESS.values():
        path.unlink()
        spoil(path)
        try:
            code = READERS.get(name, lambda run: remembered.all_kept(run))(run)
            said = capsys.readouterr().err
        except UserError as error:
            code, said = error.exit_code, str(error)
        assert code in (2, 3) and str(path) in said


def test_lost_lines_of_the_journal_are_noticed_and_unannounced_ones_left_out(run):
    path = run / "metrics.jsonl"
    content = path.read_text()
    path.write_text(content + '{"kind": "epoch"}\n{"ki')
    assert "".join(json.dumps(line) + "\n" for line in journal.read_lines(run)) == content
    path.write_text("".join(content.splitlines(keepends=True)[:-1]))
    with pytest.raises(DamagedError, match="metrics"):
        journal.read_lines(run)


def test_files_that_were_changed_on_purpose_are_taken_without_the_list(run):
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text + "# mine\n")
    with pytest.raises(DamagedError, match=r"delete .*SHA256SUMS"):
        collect(run)
    (run / checksums.NAME).unlink()  # as runs of older versions are
    assert collect(run).complete and runs.evaluate(run)["tasks"] == 2
    flip(run / "snapshots" / "task-1.npz", 0.02)
    with pytest.raises(DamagedError, match="task-1"):
        snapshots.read_snapshot(run, 0)


def test_a_kill_between_announcement_and_rename_is_no_damage(run):
    before = (run / "tasks.json").read_bytes()
    checksums.announce(run, {"tasks.json": "0" * 64, "metrics.jsonl": "1" * 64})
    checksums.check(run, "tasks.json")
    journal.read_lines(run)
    checksums.begin(run)  # the next owner finds out which of the two it is
    checksums.write_text(run, "command.txt", "another\n")
    checksums.check(run, "tasks.json")
    assert journal.read_lines(run) and (run / "tasks.json").read_bytes() == before


@pytest.mark.parametrize("settings", [("unlabeled_batch=200",), ("bank_refresh_epochs=1", "epochs=3")])
@pytest.mark.parametrize("at", [(0, 1, 0), (1, 1, 0)])
def test_it_goes_on_from_the_checkpoint_before_a_damaged_one(tmp_path, monkeypatch, capsys, settings, at):
    """Stopped inside an epoch or in its last step; the bank's generation that the older one needs is there."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    runs.start(tiny(*settings), whole, quiet=True)
    losses = NNCSL.losses

    def stopping(self, step):
        if (step.task.index, step.now.epoch, step.now.step) == at:
            os.kill(os.getpid(), signal.SIGTERM)
        return losses(self, step)

    monkeypatch.setattr(NNCSL, "losses", stopping)
    with pytest.raises(runs.RunInterrupted):
        runs.start(tiny(*settings), broken, quiet=True)
    monkeypatch.undo()
    flip(broken / "checkpoint" / "state.pt")
    capsys.readouterr()
    assert cli.main(["train", "--resume", str(broken), "--quiet", "--no-report"]) == 3
    said = capsys.readouterr().err
    assert "state.pt" in said and f"nncsl train --resume {broken} --previous" in said and said.count("\n") == 1
    assert cli.main(["train", "--resume", str(broken), "--quiet", "--no-report", "--previous"]) == 0
    assert learned(broken) == learned(whole)


def test_without_an_older_checkpoint_there_is_nothing_to_fall_back_on(run):
    (run / "checkpoint" / checkpoint.PREVIOUS).unlink()
    with pytest.raises(checkpoint.CheckpointError, match="no checkpoint before its last one"):
        runs.resume(run, [], previous=True)
    flip(run / "checkpoint" / "state.pt")
    with pytest.raises(checkpoint.CheckpointError, match="start the run again"):
        runs.evaluate(run)


def test_damaged_images_of_the_memory_are_refused(run):
    from nncsl.record import remembered
    from nncsl.record.state import RunState

    state = RunState.unpack(checkpoint.load(run / "checkpoint" / "state.pt")["state"])
    (path,) = (run / "memory").iterdir()
    flip(path, 0.9)
    with pytest.raises(DamagedError, match=path.name):
        remembered.read(run, state.memory, np.zeros(0, np.int64))


def test_a_save_after_a_kill_between_its_two_renames_leaves_nothing_beside(tmp_path):
    """The previous checkpoint is the last one by another name then, and renaming does nothing here."""
    (tmp_path / "checkpoint").mkdir()
    checksums.begin(tmp_path)
    state, previous = (tmp_path / "checkpoint" / name for name in (checkpoint.STATE, checkpoint.PREVIOUS))
    checkpoint.save(state, {"step": 1})
    os.link(state, previous)
    checkpoint.save(state, {"step": 2})
    assert sorted(path.name for path in state.parent.iterdir()) == [checkpoint.PREVIOUS, checkpoint.STATE]
    assert [checkpoint.load(path)["step"] for path in (previous, state)] == [1, 2]
