"""What somebody sees who starts a run: what it is, what it does now, how long it takes, and what may go wrong."""

import io
import json
import os
import re
import sys
import time
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from rich.console import Console

from nncsl import cli, methods, runs
from nncsl.cli import names
from nncsl.config import load, presets
from nncsl.data.catalog import open_data
from nncsl.planner import choice, duration
from nncsl.record import folder as run_folder
from nncsl.record import introduction
from nncsl.steps import threads
from nncsl.terminal import Reporter, Waiting


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of two tasks on digits: its folder, its summary and all that it printed."""
    folder = tmp_path_factory.mktemp("first") / "run"
    settings = {"tasks": 2, "epochs": 1, "warmup_epochs": 0, "unlabeled_batch": 64, "bank_views": 1}
    config = load("digits", [settings, {"network": {"width": 8, "hidden": 16}}])
    shown, before = io.StringIO(), sys.stdout
    sys.stdout = shown
    try:
        summary = runs.start(config, folder, quiet=True)
    finally:
        sys.stdout = before
    return folder, summary, shown.getvalue()


def test_a_run_says_first_what_it_is_and_then_what_it_does(finished):
    said = finished[2]
    facts = ["reading digits", "images", "1,297 to train, 500 to test", "labels", "4 of each class", "tasks"]
    facts += ["2 with 5 classes each", "network", "weights", "views", "2 of 8 px and 2 of 6 px", "device", "thread"]
    facts += ["teacher", "features", "memory", "40 labeled images"]
    stages = ["measuring the untrained network", "task 1/2", "training", "measuring", "accuracy after task 1/2"]
    stages += ["task 2/2", "sweep", "training", "measuring", "accuracy after task 2/2", "results"]
    place = 0
    for words in (*facts, *stages):
        assert words in said[place:], f"{words!r} is not said, or too early"
        place = said.index(words, place) + len(words)
    assert said.count("measuring ...") == 2 and len(said.splitlines()) < 60


def test_the_work_that_a_run_is_estimated_from_is_the_work_that_it_does(finished):
    folder, summary, _ = finished
    config = run_folder.read_config(folder)
    source, tasks = open_data(config)
    works = duration.of_run(config, tasks, len(source.test))
    assert sum(work.steps * work.views for work in works) == round(summary["images_per_second"] * summary["seconds"])
    assert works[1].views > works[0].views and works[1].each > works[0].each  # supports of more classes


def test_every_method_has_an_estimate():
    for method in methods.METHODS:
        config = methods.settled(load("digits", [{"method": method, "teacher_mode": "model"}]))
        works = duration.of_run(config, open_data(config)[1], 500)
        assert len(works) == config.tasks and min(work.total for work in works) > 0


def test_time_left_counts_all_tasks_in_their_size():
    small, large = duration.Work(10, 1, 100.0, 0.0), duration.Work(10, 2, 200.0, 500.0)
    assert duration.time_left([small, large], 0, done=4, seconds=1.0) == 6 + 20 + 5
    assert duration.time_left([small, large], 1, done=10, seconds=1.0) == 2.5
    said = [duration.words(seconds) for seconds in (20, 55, 130, 7200, 4.8 * 86400)]
    assert said == ["under a minute", "about 1 minute", "about 2 minutes", "about 2 hours", "about 5 days"]
    assert "cifar10-small" in duration.advice(load("cifar10"), 5e5) and not duration.advice(load("cifar10"), 50)


class _Option(NamedTuple):
    name: str


class _Phase:
    name, epochs, steps = "train", 2, 40


def test_the_total_is_said_once_after_a_few_steps(capsys):
    reporter = Reporter(2, quiet=True)
    reporter.expect(duration.Outlook(load("digits"), [duration.Work(80, 1, 1.0, 0.0)] * 2))
    reporter.begin_task(0, ["a"], [_Phase()], 0, 0, 0)
    reporter.begin_phase(_Phase())
    for _ in range(60):
        reporter.step(0, {}, 1)
    assert capsys.readouterr().out.count("under a minute for all tasks on this machine") == 1


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a terminal of POSIX")
def test_a_terminal_never_shows_a_bar_of_unknown_length(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    master, slave = os.openpty()
    with os.fdopen(slave, "w") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        with Reporter(2) as reporter:
            for _ in reporter.track(range(3), "measuring the untrained network"):
                reporter._bar.refresh()
            reporter.begin_task(0, ["a"], [_Phase()], 0, 0, 0)
            reporter.begin_phase(_Phase())
            reporter.step(0, {"loss": 1.0}, 8)
            reporter._bar.refresh()
    shown = os.read(master, 1 << 16).decode()
    os.close(master)
    assert "0/?" not in shown and "measuring the untrained network" in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    assert "0/3" in shown and "1/80" in shown


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a terminal of POSIX")
def test_planning_shows_what_is_being_measured(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    plain, (master, slave) = io.StringIO(), os.openpty()
    for file in (plain, os.fdopen(slave, "w")):
        with Waiting(Console(file=file, width=80)) as waiting:
            waiting.say("measuring a few small steps")
            for option in choice._noted([_Option("whole batch"), _Option("micro-batch 8")], waiting.note):
                assert option.name
            time.sleep(0.2)  # a terminal is drawn ten times a second
    shown = os.read(master, 1 << 16).decode()
    os.close(master)
    assert plain.getvalue() == "measuring a few small steps\n"
    assert "planning: 2 ways measured, now micro-batch 8" in shown


def test_accuracies_of_many_tasks_fit_a_narrow_terminal(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "60")
    reporter = Reporter(20, quiet=True)
    reporter.accuracies(1, [50.0] * 20, 61.0)
    assert "│   50.0 │   50.0 │         61.0 │" in capsys.readouterr().out
    reporter.accuracies(11, [50.0] * 20, 61.0)
    line = capsys.readouterr().out
    assert line == f"accuracy after task 12/20: {', '.join(['50.0'] * 12)}; seen classes 61.0\n"


def test_one_class_in_a_task_is_warned_of(finished):
    """It would train with losses of zero, in silence."""
    config = replace(run_folder.read_config(finished[0]), tasks=10)
    source, tasks = open_data(config)
    said = introduction.lines(config, source, tasks, methods.build(config, 10), torch.device("cpu"))
    assert said[-1].startswith("  warning: one class alone in task 1 (0), 2 (1), 3 (2), ...: ")
    assert "warning" not in finished[2]


@pytest.mark.parametrize(
    ("precision", "processor", "warned"),
    [
        ("bf16", {"avx512_bf16": False, "amx_bf16": False}, True),
        ("bf16", {"avx512_bf16": True, "amx_bf16": False}, False),
        ("bf16", {"a_later_name": True}, False),
        ("fp32", {"avx512_bf16": False, "amx_bf16": False}, False),
    ],
)
def test_a_precision_that_this_processor_emulates_is_named(finished, monkeypatch, precision, processor, warned):
    """Autocast to bf16 without such arithmetic took twice as long as fp32, and nothing said so."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: processor, raising=False)
    config = replace(run_folder.read_config(finished[0]), precision=precision)
    source, tasks = open_data(config)
    said = introduction.lines(config, source, tasks, methods.build(config, 10), torch.device("cpu"))
    [line] = [line for line in said if line.strip().startswith("device")]
    assert precision in line and ("only emulates it" in line) == warned


def test_tasks_of_different_sizes_are_counted():
    assert introduction.sizes([4, 3, 3]) == "4, 3 and 3 classes" and introduction.sizes([2, 2]) == "2 classes each"
    assert introduction.sizes([1]) == "1 class"


def test_eval_is_a_table_with_means_and_chance_for_people_and_json_for_programs(finished, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert cli.main(["eval", str(finished[0]), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"tasks", "linear", "nearest_neighbours", "mean", "chance", "classes"} == set(found)
    assert found["chance"] == 10 and found["mean"]["linear"] == sum(found["linear"]) / 2
    assert cli.main(["eval", str(finished[0])]) == 0
    shown = capsys.readouterr().out
    rows = {line.split()[1]: line.split()[3::2] for line in shown.splitlines() if line.startswith("│")}
    assert set(rows) == {"1", "2", "mean", "chance"} and rows["chance"] == ["10.0", "10.0"]
    assert float(rows["mean"][0]) == pytest.approx(found["mean"]["linear"], abs=0.06)


def test_small_steps_take_one_thread_and_say_so(monkeypatch):
    """Beside a busy process two threads wait for each other in every operator of a small network."""
    cpu = torch.device("cpu")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for preset, count in (("digits", 1), ("cifar10-small", 2)):
            config = load(preset)
            with threads.chosen(methods.build(config, 10).network, config, cpu):
                assert torch.get_num_threads() == count
            assert torch.get_num_threads() == 2
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
        with threads.chosen(methods.build(load("digits"), 10).network, load("digits"), cpu):
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_help_lists_every_preset_and_method():
    assert names.methods() == list(methods.METHODS) and names.presets() == presets()
    for shown in (cli.build_parser().format_help(), names.overview()):
        listed = set(re.findall(r"[\w-]+", shown))
        assert listed >= {*methods.METHODS, *presets()}
    assert all(about for _, about in names.described_presets())


def test_a_plan_without_a_budget_tells_the_time(capsys):
    small = ["--set", "network.width=8", "--set", "tasks=2", "--set", "epochs=1", "--set", "warmup_epochs=0"]
    assert cli.main(["plan", "--json", *small]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["seconds_by_task"]) == 2 and 0 < found["seconds"] == sum(found["seconds_by_task"])
    assert cli.main(["plan", *small]) == 0
    shown = capsys.readouterr()
    assert "for all tasks on this machine" in shown.out and "measuring a few small steps" in shown.err
