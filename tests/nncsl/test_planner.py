"""--memory-budget: amounts, plans, refusals, and a run that is measured against its plan."""

import json
import re
import subprocess
import sys

import pytest

from nncsl import cli, config, planner, runs
from nncsl.config import build, parse_bytes
from nncsl.errors import ConfigError
from nncsl.planner import choice
from nncsl.planner.options import Option

# Digits enlarged to CIFAR's size and a network whose activations are hundreds of MB for the whole batch.
HEAVY = [
    "network.width=32",
    "network.blocks=[1, 1]",
    "network.hidden=64",
    "unlabeled_batch=128",
    "tasks=2",
    "epochs=1",
]
HEAVY += ["views.large.size=32", "views.small.size=18", "unlabeled_fraction=0.2", "bank_views=1", "warmup_epochs=0"]
# Enough for whatever does not depend on how large things are, and planned in a second.
LIGHT = ["network.width=8", "network.blocks=[1]", "network.hidden=16", "tasks=2", "epochs=1", "warmup_epochs=0"]
LIGHT += ["unlabeled_fraction=0.2", "bank_views=1"]


def flags(assignments):
    return [part for assignment in assignments for part in ("--set", assignment)]


@pytest.mark.parametrize(
    ("text", "size"),
    [("2GB", 2e9), ("2 gb", 2e9), ("1.5GiB", 1.5 * 2**30), ("500M", 5e8), ("4096", 4096), ("8kB", 8e3)],
)
def test_amounts_of_memory(text, size):
    assert parse_bytes(text, least=0) == size


@pytest.mark.parametrize("text", ["", "much", "0GB", "-2GB", "2 potatoes", "GB"])
def test_what_is_no_amount_of_memory(text):
    with pytest.raises(ConfigError, match=r"such as 2GB"):
        parse_bytes(text)
    with pytest.raises(ConfigError, match=r"such as 2GB"):
        config.load("digits", [{"memory_budget": text}])


def load(assignments):
    return config.load("digits", map(build.parse_assignment, assignments))


def planned(amount, *assignments):
    loaded = load([*assignments, f"memory_budget={amount}"])
    return planner.without_training(loaded, runs.find_device("cpu"), print)


def test_plans_take_the_whole_batch_where_it_fits_and_less_where_it_does_not():
    roomy = planned("3GB", *HEAVY)
    assert roomy.chosen.config.micro_batch == 0 and not roomy.chosen.config.recompute
    tight = planned("150MB", *HEAVY)
    assert tight.chosen.computes_twice
    assert tight.chosen.total <= 150e6 < roomy.chosen.total
    assert {"student", "gradients", "optimizer", "teacher", "bank", "data", "pixels", "rest", "activations"} == set(
        tight.chosen.parts
    )
    record = planner.as_record(tight)
    assert record["total"] == sum(record["parts"].values()) and record["settings"]["bank_codec"] == "fp16"


def test_too_small_a_budget_is_refused_with_one_that_works(capsys):
    assert cli.main(["plan", "--memory-budget", "5MB", *flags(LIGHT)]) == 2
    said = capsys.readouterr().err
    found = re.search(r"the smallest that would work is (\d+)MB", said)
    assert found, said
    assert 5 < int(found[1]) < 150
    assert cli.main(["plan", "--json", "--memory-budget", f"{int(found[1])}MB", *flags(LIGHT)]) == 0
    assert json.loads(capsys.readouterr().out)["total"] <= int(found[1]) * 1e6


def test_what_was_asked_for_by_hand_stays():
    asked = {"micro_batch": 48, "recompute": True, "spill": "disk", "bank_residency": "disk", "bank_codec": "fp32"}
    plan = planned("1GB", *LIGHT, *(f"{key}={value}" for key, value in asked.items()))
    assert {key: getattr(plan.chosen.config, key) for key in asked} == asked


def test_a_refused_run_leaves_nothing(tmp_path, capsys):
    folder = tmp_path / "run"
    assert cli.main(["train", "--out", str(folder), "--memory-budget", "5MB", *flags(LIGHT)]) == 2
    assert "the smallest that would work" in capsys.readouterr().err
    assert not folder.exists()


def option(seconds, micro_batch=0, recompute=False, spill="device"):
    settings = config.load("digits", [{"micro_batch": micro_batch, "recompute": recompute, "spill": spill}])
    return Option(settings, {}, seconds)


def test_noise_does_not_make_more_work_faster():
    """Of equal micro-batches the one with less work wins; a large one on disk beats a tiny one in memory."""
    whole, again = option(1.0), option(0.9, recompute=True)
    large, moved, tiny = option(1.5, 32), option(1.4, 32, spill="disk"), option(9.0, 1)
    times = [o.seconds for o in choice.times_in_order([whole, again, large, moved, tiny])]
    assert times == [1.0, 1.0, 1.5, 1.5, 9.0]


def test_a_bank_that_fills_the_memory_goes_to_the_disk():
    """Large enough not to be mapped, so that leaving it in its file frees memory; it keeps its codec."""
    many = ("bank_views=4000", "unlabeled_fraction=1.0")
    in_memory, on_disk = planned("20GB", *LIGHT, *many), planned("900MB", *LIGHT, *many)
    assert in_memory.chosen.config.bank_residency == "ram" and in_memory.chosen.parts["bank"] > 2e9
    assert on_disk.chosen.config.bank_residency == "disk" and on_disk.chosen.config.bank_codec == "fp16"
    assert 0 < on_disk.chosen.parts["bank"] < in_memory.chosen.parts["bank"] / 5


def test_view_sets_of_labeled_images_are_planned_for():
    one, many = (planned("1GB", *LIGHT, f"bank_support_views={n}").chosen.parts["bank"] for n in (0, 101))
    rows = 100 * 2 * 20  # two views of the remembered images; those of the task itself are never asked about
    assert many - one >= rows * 256  # fp16


def test_a_refresh_is_planned_for():
    """New sets are swept beside the old ones: where banks are the largest part, a refresh needs one more."""
    large = ("bank_views=400", "epochs=2")
    kept, replaced = (planned("3GB", *LIGHT, *large, f"bank_refresh_epochs={n}").chosen for n in (0, 1))
    assert replaced.parts["bank"] == kept.parts["bank"]
    assert replaced.parts["activations"] >= kept.parts["bank"] > kept.parts["activations"]


def test_a_full_disk_is_said_before_training():
    with pytest.raises(ConfigError, match="MB are free"):
        planned("1GB", *LIGHT, "bank_views=100000000")


def test_planning_is_for_the_run_that_train_would_start():
    plan = planned("1GB", *LIGHT, "method=joint")
    assert plan.chosen.config.tasks == 1 and plan.chosen.parts["bank"] == 0


def test_imagenet_can_be_planned_on_the_command_line(capsys):
    tiny = ("network.width=8", "network.blocks=[1]", "network.hidden=16", "unlabeled_batch=16")
    assert cli.main(["plan", "--preset", "imagenet100", "--memory-budget", "8GB", *flags(tiny)]) == 0
    said = capsys.readouterr().out
    assert "Plan for 8 GB" in said and "at the peak" in said and "chosen" in said


@pytest.mark.parametrize("amount", ["120MB", "200MB"])
def test_a_run_keeps_within_its_budget(amount, tmp_path):
    """In its own process, as a user starts it: the peak above the baseline against the budget."""
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "nncsl", "train", "--quiet", "--no-report", "--out", str(folder)]
    ended = subprocess.run([*command, "--memory-budget", amount, *flags(HEAVY)], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "Plan for" in ended.stdout and "memory budget" in ended.stdout
    held = json.loads((folder / "summary.json").read_text())["peak_memory"]
    plan = json.loads((folder / "plan.json").read_text())
    assert held["budget"] == parse_bytes(amount)
    assert held["total"] - held["baseline"] <= 1.05 * held["budget"]
    assert held["budget_used"] == pytest.approx(held["total"] - held["baseline"], rel=0.01)
    assert held["total"] - held["baseline"] > 0.5 * plan["total"]  # and the plan is not mere caution
    recorded = config.read(folder / "config.yaml")
    assert {name: getattr(recorded, name) for name in plan["settings"]} == plan["settings"]


def test_known_data_sets_can_be_planned_without_their_images():
    loaded = config.load("imagenet100", [{"memory_budget": "8GB"}])
    sizes = planner.expected_sizes(loaded)
    assert sizes.classes == 100 and sizes.unlabeled_per_task == 126_689 // 20
    assert planner.expected_sizes(config.load("cifar10")).data_bytes == 60_000 * 3072
    with pytest.raises(ConfigError, match="size is not known"):
        planner.expected_sizes(config.load("cifar10", [{"dataset": "folder:somewhere"}]))


def test_a_run_may_go_on_with_other_passes(small, tmp_path):
    """Another machine may have less memory: passes may change on resuming, the protocol may not."""
    folder = tmp_path / "run"
    runs.start(small("epochs=1", "warmup_epochs=0"), folder, quiet=True)
    (folder / "summary.json").unlink()
    resumed = runs.resume(folder, [{"micro_batch": 8, "recompute": True}], quiet=True)
    assert resumed["average_accuracy"] > 0
    with pytest.raises(ConfigError, match="tau"):
        runs.resume(folder, [{"tau": 0.2}], quiet=True)


def test_a_run_that_goes_on_with_another_budget_is_planned_anew(tmp_path):
    folder = tmp_path / "run"
    runs.start(load([*LIGHT, "memory_budget=2GB", "micro_batch=8"]), folder, quiet=True)
    assert config.read(folder / "config.yaml").micro_batch == 8
    (folder / "summary.json").unlink()
    summary = runs.resume(folder, [{"memory_budget": "3GB"}], quiet=True)
    kept = config.read(folder / "config.yaml")
    assert (kept.memory_budget, kept.micro_batch, kept.recompute) == ("3GB", 0, False)
    assert json.loads((folder / "plan.json").read_text())["settings"]["micro_batch"] == 0
    assert summary["peak_memory"]["budget"] == 3_000_000_000
    assert summary["peak_memory"]["budget_used"] <= 3_000_000_000
