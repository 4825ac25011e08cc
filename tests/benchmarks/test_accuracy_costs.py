"""Campaigns of own images, and the tables of what runs took and what tasks did to each other."""

import numpy as np
import pytest
from PIL import Image

from nncsl import config
from nncsl.benchmarks.accuracy import __main__ as accuracy
from nncsl.benchmarks.accuracy import campaign, tables
from nncsl.config.scaling import settings_for
from nncsl.errors import ConfigError
from tests.benchmarks.campaigns import SMALL, entry_recorded, record_of


def test_own_images_are_recorded_by_name_wherever_they_lie(write, tmp_path):
    rng = np.random.default_rng(0)
    for number in range(24):
        path = tmp_path / "data" / "pictures" / "abcd"[number % 4] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(path)
    settings = {"dataset": "folder:pictures", "labels": "2/class", "cache_dir": str(tmp_path / "cache"), "tasks": 2}
    settings |= {"views.mean": [0.5] * 3, "views.std": [0.5] * 3}
    write(runs=["nncsl"], settings=SMALL | settings)
    (entry,) = campaign.read("tiny").entries
    assert entry.located(None) == entry.arguments
    assert "%" in campaign.run(entry, threads=1, data_dir=str(tmp_path / "data"))
    assert str(tmp_path / "data") not in (tmp_path / "results" / "tiny.jsonl").read_text()
    record = record_of(tmp_path, "nncsl")
    assert record["config"]["dataset"] == record["summary"]["dataset"] == "folder:pictures"
    # Its folder is known again, though it says where the images lie.
    begun = (entry.folder / "config.yaml").read_text()
    assert f"folder:{tmp_path / 'data' / 'pictures'}" in begun and campaign._begun(entry)
    step_views = round(record["summary"]["images_per_second"] * record["summary"]["seconds"])
    assert record["steps"] >= 2 and step_views % 2 == 0
    table = tables.chosen_columns([campaign.read("tiny")], tables.costs)
    row = dict(zip(*([cell.strip() for cell in line.split("|")] for line in table.splitlines()[::2]), strict=True))
    assert row["run"] == "nncsl" and row["steps"] == f"{record['steps']:.1f}" and float(row["activations MB"]) > 0
    assert float(row["ms a step"]) == round(1e3 * record["summary"]["seconds"] / record["steps"], 1) > 0


def test_own_images_of_one_name_in_two_places_are_not_taken_for_each_other(write):
    write(runs=["nncsl"], settings=SMALL | {"dataset": "folder:birds/train"})
    with pytest.raises(ConfigError, match="folder:birds/train"):
        campaign.read("tiny")


def test_what_runs_took_is_that_of_one_processor_and_may_be_unknown(write):
    write(runs=["csl"], seeds=(0, 1, 2))
    for entry in campaign.read("tiny").entries:
        summary = {"seconds": 2.0, "images_per_second": 10.0 + entry.seed}
        summary["peak_memory"] = {"total": 1e6, "teacher": 0, "bank": 0, "activations": 0}
        machine = {"processor": "another" if entry.seed == 2 else "usual", "threads": 1}
        entry_recorded(entry, summary=summary, machine=machine, steps=4, cpu_seconds=3.0)
    header, _, row = tables.chosen_columns([campaign.read("tiny")], tables.costs).splitlines()
    found = dict(zip(header.split(" | "), row.split(" | "), strict=True))
    assert found["views/s"] == "10.5 ± 0.7" and found["ms a step"] == "500.0 ± 0.0" and found["kept MB |"] == " |"


def test_steps_are_counted_unless_epochs_have_several_lengths(write, tmp_path):
    write(runs=["nncsl", "foster"], settings=SMALL | {"tasks": 2, "epochs": 2})
    assert accuracy.main(["run", "tiny", "--threads", "1"]) == 0
    one, several = record_of(tmp_path, "nncsl"), record_of(tmp_path, "foster")
    assert one["steps"] > 0 and one["steps"] % 2 == 0 and several["steps"] is None


def test_mini_imagenet_has_the_views_that_images_of_its_size_get():
    ours = campaign.read("mini-imagenet").entries[0].config
    usual = config.load("cifar10", [settings_for(84)])
    assert ours.views == usual.views and ours.network == usual.network


def test_guesses_are_those_of_each_tasks_last_epoch(write, tmp_path):
    write(runs=["csl", "paws", "er"], seeds=(0, 1))
    for entry in campaign.read("tiny").entries:
        known = None if entry.name == "paws" else 80.0 + 2 * entry.seed
        entry_recorded(entry, summary={}, curves={"task": [0, 0, 1, 1], "unlabeled_accuracy": [1.0, 90.0, 2.0, known]})
    for entry in campaign.read("tiny").entries:
        if entry.name == "er":
            entry_recorded(entry, summary={}, curves={"task": [0, 1], "lin": [1.0, 1.0]})
    lines = tables.guesses(campaign.read("tiny"), ["paws", "csl", "er"]).splitlines()
    assert lines[0] == "| run | seeds | task 1 | task 2 |"
    assert lines[2:] == ["| paws | 2 | 90.0 ± 0.0 |  |", "| csl | 2 | 90.0 ± 0.0 | 81.0 ± 1.4 |"]
    with pytest.raises(ConfigError, match="run = nncsl"):
        tables.guesses(campaign.read("tiny"), ["nncsl"])


def test_transfer_has_a_row_for_each_run_and_says_whose(write, tmp_path):
    for name, title in (("first", "few"), ("second", "many")):
        write(name, runs=["er", "icarl"], seeds=(0, 1), title=title)
        for entry in campaign.read(name).entries:
            forward = None if entry.name == "icarl" else -10.0 - 2 * entry.seed
            entry_recorded(entry, summary={"fwt": forward, "bwt": -5.0, "forgetting": 6.0})
    both = [campaign.read("first"), campaign.read("second")]
    lines = tables.chosen_columns(both, tables.transfer).splitlines()
    assert lines[0] == "| data | run | seeds | forward transfer | backward transfer | forgetting |"
    assert lines[2] == "| few | er | 2 | -11.0 ± 1.4 | -5.0 ± 0.0 | 6.0 ± 0.0 |"
    assert lines[5] == "| many | icarl | 2 |  | -5.0 ± 0.0 | 6.0 ± 0.0 |"
    assert tables.chosen_columns(both[:1], tables.transfer).splitlines()[2].startswith("| er | 2 | -11.0")
