"""The method of docs/extending.md, from a file of its own: killed in every phase and resumed, it ends the same."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml

PAGE = Path(__file__).parents[3] / "docs" / "extending.md"
QUICK = [
    "epochs=6",
    "own.labels_first=0.5",
    "network.width=8",
    "network.hidden=16",
    "memory=20",
    "unlabeled_batch=64",
    "own.sure=0.7",
]
TIMES = {"seconds", "images_per_second", "peak_memory"}


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "my_method.py"
    path.write_text(re.search(r"```python\n(# my_method.py\n.*?)```", PAGE.read_text(), flags=re.DOTALL)[1])
    return path


def start(script, *arguments):
    words = [sys.executable, str(script), *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(script, *arguments):
    process = start(script, *arguments)
    out, error = process.communicate()
    assert process.returncode == 0, error
    return out


def new_run(folder):
    sets = [word for setting in QUICK for word in ("--set", setting)]
    return ["train", "--method", "prototypes", "--quiet", "--no-report", "--out", folder, *sets]


def ended(folder):
    """Everything that was learned and measured: tensors, losses and accuracies, without times."""
    saved = torch.load(folder / "checkpoint" / "state.pt", weights_only=True)
    tensors = {name: value.numpy().tobytes() for name, value in saved["method"].items()}
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((folder / "summary.json").read_text())
    kept = [{k: v for k, v in line.items() if k not in TIMES} for line in (*lines, summary)]
    return tensors, kept


def test_killed_in_every_phase_it_ends_the_same(script, tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run(script, *new_run(whole))
    lines = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    first = [(line.get("phase"), line["epoch"]) for line in lines if line["task"] == 0 and line["kind"] == "epoch"]
    assert first == [*(("labels", epoch) for epoch in range(3)), *(("guesses", epoch) for epoch in range(3, 6))]

    killed_in = set()
    for kill, lines in enumerate((1, 5, 9)):  # a task has seven lines: in its first phase, in its second, ...
        saved = (broken / "checkpoint" / "state.pt").exists()
        process = start(
            script, *(["train", "--quiet", "--no-report", "--resume", broken] if saved else new_run(broken))
        )
        wait_for_lines(process, broken, at_least=lines)
        process.send_signal(signal.SIGKILL if kill % 2 else signal.SIGTERM)
        _, error = process.communicate()
        assert process.returncode in (-signal.SIGKILL, 130), error
        state = torch.load(broken / "checkpoint" / "state.pt", weights_only=True)["state"]
        killed_in.add((state["phase"], state["begun"]))
    assert len(killed_in) > 1  # inside one phase and inside the other, or between them
    run(script, "train", "--quiet", "--no-report", "--resume", broken)
    assert ended(broken) == ended(whole)


def wait_for_lines(process, folder, *, at_least):
    path = folder / "metrics.jsonl"
    while process.poll() is None and (not path.exists() or path.read_text().count("\n") < at_least):
        time.sleep(0.01)


def test_what_it_keeps_and_predicts(script, tmp_path):
    folder = tmp_path / "run"
    run(script, *new_run(folder))
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["average_accuracy"] > 25 and summary["fwt"] is None  # no mean, no score for classes to come
    saved = torch.load(folder / "checkpoint" / "state.pt", weights_only=True)["method"]
    assert saved["means"].isfinite().all()
    found = json.loads(run(script, "eval", folder, "--json"))
    assert found["linear"] == summary["accuracy_matrix"][-1]
    page = Path(run(script, "report", folder).strip()).read_text()
    assert "guessed" in page and "prototypes" in page  # its own loss has a curve
    assert "phase" in run(script, "metrics", folder).splitlines()[0]


def test_own_settings_are_listed_typed_and_checked(script):
    resolved = yaml.safe_load(run(script, "config", "--method", "prototypes", "--set", "own.sure=0.9"))
    assert resolved["own"] == {"sure": 0.9, "rate": 0.05, "labels_first": 0.25}
    for setting, message in [
        ("own.shure=0.9", "unknown setting own.shure; did you mean own.sure?"),
        ("own.sure=yes", "own.sure=True: expected float, got bool"),
        ("own=3", "own=3: expected settings"),
    ]:
        process = start(script, "config", "--method", "prototypes", "--set", setting)
        _, error = process.communicate()
        assert process.returncode == 2 and message in error


def test_a_yaml_beside_the_file_sets_what_the_method_needs(script):
    script.with_name("prototypes.yaml").write_text("labeled_batch: 12\nown: {rate: 0.2}\n")
    resolved = yaml.safe_load(run(script, "config", "--method", "prototypes", "--set", "own.sure=0.6"))
    assert resolved["labeled_batch"] == 12 and resolved["own"] == {"sure": 0.6, "rate": 0.2, "labels_first": 0.25}
