"""Real runs on digits, shortened: two methods, two seeds each, and one that was killed on its way."""

import os
import subprocess
import sys
import time

import pytest

from nncsl import config
from nncsl.config import build
from nncsl.runs import start
from tests.nncsl.report.browser import BINARY, Browser

SHORT = ["epochs=2", "network.width=8", "network.hidden=16", "bank_views=2", "unlabeled_batch=64"]


def train_command(folder, *more):
    """The command as somebody types it."""
    settings = [part for assignment in SHORT for part in ("--set", assignment)]
    return [sys.executable, "-m", "nncsl", "train", "--quiet", "--out", str(folder), *settings, *more]


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Folders by name: nncsl-0, nncsl-1, er-0, er-1; the first one was trained by the command, with its report."""
    root = tmp_path_factory.mktemp("runs")
    ended = subprocess.run(train_command(root / "nncsl-0"), capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stderr
    for method, seed in (("nncsl", 1), ("er", 0), ("er", 1)):
        settings = [*SHORT, f"method={method}", f"seed={seed}"]
        loaded = config.load("digits", map(build.parse_assignment, settings))
        start(loaded, root / f"{method}-{seed}", quiet=True)
    return {path.name: path for path in sorted(root.iterdir())}


@pytest.fixture(scope="session")
def killed(tmp_path_factory):
    """A run that was killed in its second task or later, with at least one to come."""
    folder = tmp_path_factory.mktemp("killed") / "run"
    process = subprocess.Popen(
        train_command(folder, "--set", "epochs=20"),
        stdout=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    journal = folder / "metrics.jsonl"
    while not journal.exists() or '"kind": "task"' not in journal.read_text():
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    return folder


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    if BINARY is None:
        pytest.skip("no Chromium here: as root, apt-get install chromium")
    opened = Browser(tmp_path_factory.mktemp("chromium"))
    yield opened
    opened.close()
