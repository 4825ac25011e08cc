"""--memory-budget: amounts, plans, refusals, and a run that is measured against its plan."""

import json
import re
import subprocess
import sys

import pytest

from nncsl import cli, config, planning, run, typed
from nncsl.config import parse_bytes
from nncsl.errors import ConfigError

# Digits enlarged to CIFAR's size and a network whose activations are hundreds of MB for the whole batch.
HEAVY = [
    "network.width=32",
    "network.blocks=[1, 1]",
    "network.hidden=64",
    "unlabelled_batch=128",
    "tasks=2",
    "epochs=1",
]
HEAVY += ["views.large.size=32", "views.small.size=18", "unlabelled_fraction=0.2", "bank_views=1", "warmup_epochs=0"]


def flags(*assignments):
    return [part for assignment in (*HEAVY, *assignments) for part in ("--set", assignment)]


@pytest.mark.parametrize(
    ("text", "size"),
    [("2GB", 2e9), ("2 gb", 2e9), ("1.5GiB", 1.5 * 2**30), ("500M", 5e8), ("4096", 4096), ("8kB", 8e3)],
)
def test_amounts_of_memory(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "much", "0GB", "-2GB", "2 potatoes", "GB"])
def test_what_is_no_amount_of_memory(text):
    with pytest.raises(ConfigError, match=r"such as 2GB"):
        parse_bytes(text)
    with pytest.raises(ConfigError, match=r"such as 2GB"):
        config.load("digits", [{"memory_budget": text}])


def planned(budget, *assignments):
    loaded = config.load("digits", map(typed.parse_assignment, [*HEAVY, *assignments, f"memory_budget={budget}"]))
    return planning.without_training(loaded, run.find_device("cpu"), print)


def test_plans_take_the_whole_batch_where_it_fits_and_less_where_it_does_not():
    roomy = planned("3GB")
    assert roomy.chosen.config.micro_batch == 0 and not roomy.chosen.config.recompute
    tight = planned("150MB")
    assert tight.chosen.computes_twice
    assert tight.chosen.total <= 150e6 < roomy.chosen.total
    assert {"student", "gradients", "optimizer", "teacher", "bank", "data", "pixels", "rest", "activations"} == set(
        tight.chosen.parts
    )
    record = planning.as_record(tight)
    assert record["total"] == sum(record["parts"].values()) and record["settings"]["bank_codec"] == "fp16"


def test_too_small_a_budget_is_refused_with_one_that_works(capsys):
    assert cli.main(["plan", *flags("memory_budget=5MB")]) == 2
    said = capsys.readouterr().err
    found = re.search(r"the smallest that would work is (\d+)MB", said)
    assert found, said
    assert 5 < int(found[1]) < 150
    assert cli.main(["plan", "--json", "--memory-budget", f"{int(found[1]) + 10}MB", *flags("recompute=true")]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["total"] <= (int(found[1]) + 10) * 1e6
    assert plan["settings"]["recompute"]  # what was asked for by hand stays


def test_plan_needs_a_budget(capsys):
    assert cli.main(["plan"]) == 2
    assert "--memory-budget 2GB" in capsys.readouterr().err


@pytest.mark.parametrize("budget", ["100MB", "200MB"])
def test_a_run_keeps_within_its_budget(budget, tmp_path):
    """In its own process, as a user starts it: the peak above the baseline against the budget."""
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "nncsl.cli", "train", "--quiet", "--no-report", "--out", str(folder)]
    ended = subprocess.run([*command, "--memory-budget", budget, *flags()], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "Plan for" in ended.stdout and "memory budget" in ended.stdout
    held = json.loads((folder / "summary.json").read_text())["peak_memory"]
    plan = json.loads((folder / "plan.json").read_text())
    assert held["budget"] == parse_bytes(budget)
    assert held["total"] - held["baseline"] <= 1.05 * held["budget"]
    assert held["total"] - held["baseline"] > 0.5 * plan["total"]  # and the plan is not mere caution
    recorded = config.read(folder / "config.yaml")
    assert {name: getattr(recorded, name) for name in plan["settings"]} == plan["settings"]


def test_known_data_sets_can_be_planned_without_their_images():
    loaded = config.load("imagenet100", [{"memory_budget": "8GB"}])
    sizes = planning.expected_sizes(loaded)
    assert sizes.classes == 100 and sizes.unlabeled_per_task == 126_689 // 20
    assert planning.expected_sizes(config.load("cifar10")).data_bytes == 60_000 * 3072
    with pytest.raises(ConfigError, match="size is not known"):
        planning.expected_sizes(config.load("cifar10", [{"dataset": "folder:somewhere"}]))


def test_a_run_may_go_on_with_other_passes(small, tmp_path):
    """Another machine may have less memory: passes may change on resuming, the protocol may not."""
    folder = tmp_path / "run"
    run.start(small("epochs=1", "warmup_epochs=0"), folder, quiet=True)
    (folder / "summary.json").unlink()
    resumed = run.resume(folder, [{"micro_batch": 8, "recompute": True}], quiet=True)
    assert resumed["average_accuracy"] > 0
    with pytest.raises(ConfigError, match="tau"):
        run.resume(folder, [{"tau": 0.2}], quiet=True)
