"""Event files say what metrics.jsonl says: each step once, whatever happened to the run in between."""

import os
import signal
import subprocess
import sys
import time

import pytest

from nncsl import cli, config, runs
from nncsl.record.journal import Journal, flat, open_journal
from nncsl.record.tensorboard import EventFile

pytest.importorskip("tensorboard", reason="TensorBoard is an optional dependency: pip install nncsl[tensorboard]")

QUICK = [
    "--epochs",
    "2",
    "--tasks",
    "2",
    "--bank-views",
    "1",
    "--set",
    "network.width=8",
    "--set",
    "unlabeled_batch=96",
]


def train(*arguments):
    return [sys.executable, "-m", "nncsl", "train", "--quiet", *map(str, arguments)]


def scalars(folder):
    """[(tag, step, value, time)] of all event files in the folder, with a reader that forgives nothing."""
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    return [
        (value.tag, event.step, value.simple_value, event.wall_time)
        for path in sorted((folder / "tensorboard").iterdir())
        for event in LegacyEventFileLoader(str(path)).Load()
        for value in event.summary.value
    ]


def expected(folder):
    """What the journal says the event files should hold."""
    found, epochs = [], 0
    for line in Journal(folder / "metrics.jsonl").read():
        step = epochs if line["kind"] == "epoch" else line["task"]
        epochs += line["kind"] == "epoch"
        names = flat(line).items()
        found += [(f"{line['kind']}/{n}", step, v) for n, v in names if n not in ("kind", "task", "epoch")]
    return found


def assert_equal(folder):
    got, wanted = scalars(folder), expected(folder)
    assert [row[:2] for row in got] == [row[:2] for row in wanted]
    assert [row[2] for row in got] == pytest.approx([row[2] for row in wanted], rel=1e-6)


def test_a_killed_and_resumed_run_has_every_step_once(tmp_path, capsys):
    folder = tmp_path / "run"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(train("--out", folder, "--tensorboard", *QUICK), env=environment)
    while not (folder / "metrics.jsonl").exists() or not (folder / "metrics.jsonl").read_text():
        assert process.poll() is None
        time.sleep(0.02)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    with (folder / "metrics.jsonl").open("a") as file:  # a line whose checkpoint was never saved, and half of another
        file.write('{"kind": "epoch", "task": 1, "epoch": 1, "lr": 1.0}\n{"kind": "ep')
    runs.resume(folder, [], quiet=True)
    assert_equal(folder)
    assert {step for tag, step, *_ in scalars(folder) if tag == "epoch/lr"} == {0, 1, 2, 3}
    assert len(list((folder / "tensorboard").iterdir())) == 1

    # A complete run can still get its event files, or get them again.
    for path in (folder / "tensorboard").iterdir():
        path.unlink()
    lines = (folder / "metrics.jsonl").read_text()
    assert cli.main(["train", "--resume", str(folder), "--tensorboard"]) == 0
    assert "is complete" in capsys.readouterr().out
    assert_equal(folder)
    assert (folder / "metrics.jsonl").read_text() == lines


def test_lines_that_stay_keep_their_time_even_if_the_file_was_cut_off(tmp_path):
    (tmp_path / "tensorboard").mkdir()
    journal = open_journal(tmp_path)
    journal.rewind(0, 0)
    for epoch in range(3):
        journal.epoch(0, epoch, loss=1.0 / (epoch + 1))
    journal.task(0, accuracy=[90.0, 0.0], seen_accuracy=90.0)
    before = {row[:2]: row[3] for row in scalars(tmp_path)}
    (file,) = (tmp_path / "tensorboard").iterdir()
    os.truncate(file, file.stat().st_size - 5)
    time.sleep(0.05)
    began = time.time()

    resumed = open_journal(tmp_path)
    resumed.rewind(0, 2)
    assert [row[:2] for row in scalars(tmp_path)] == [("epoch/loss", 0), ("epoch/loss", 1)]
    assert {row[:2]: row[3] for row in scalars(tmp_path)}.items() <= before.items()
    resumed.epoch(0, 2, loss=0.5)
    assert_equal(tmp_path)
    assert scalars(tmp_path)[-1][3] >= began


def test_a_journal_without_the_folder_writes_no_events(tmp_path):
    journal = open_journal(tmp_path)
    journal.rewind(0, 0)
    journal.epoch(0, 0, loss=1.0)
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


@pytest.mark.parametrize("resumes", [False, True])
def test_without_tensorboard_nothing_is_started(tmp_path, resumes):
    """In the other process a module that cannot be imported stands where TensorBoard would be found."""
    blocked, folder = tmp_path / "blocked", tmp_path / "run"
    blocked.mkdir()
    (blocked / "tensorboard.py").write_text("raise ImportError('not installed')")
    where = ["--out", folder, "--tensorboard"]
    if resumes:  # a run that was started with it elsewhere
        where = ["--resume", folder]
        (folder / "tensorboard").mkdir(parents=True)
        (folder / "config.yaml").write_text(config.dump(config.load("digits")))
    path = os.pathsep.join([str(blocked), *filter(None, sys.path)])
    done = subprocess.run(train(*where), env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == 2
    assert 'pip install "nncsl[tensorboard]"' in done.stderr and len(done.stderr.splitlines()) == 1
    assert not list(folder.glob("tensorboard/*")) and not (folder / "checkpoint").exists()
    assert folder.exists() == resumes


def test_importing_the_module_does_not_load_tensorboard():
    code = "import sys, nncsl.record.tensorboard, nncsl.runs; print([m for m in sys.modules if m == 'tensorboard'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]" and EventFile.__module__ == "nncsl.record.tensorboard"
