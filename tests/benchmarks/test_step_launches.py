"""Whole steps of NNCSL, counted: no waits, one copy, and as many operations as are recorded."""

import csv

import pytest
import torch

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("counted in Triton's interpreter", allow_module_level=True)

from nncsl.benchmarks import step_launches
from nncsl.benchmarks.stand_in import DEVICE, standing_in
from nncsl.steps.transfer import constant


def recorded(name):
    with step_launches.RESULTS.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["shapes"] == name]
    newest = rows[-1]["commit"]
    return {row["part"]: row for row in rows if row["commit"] == newest}


@pytest.fixture(autouse=True)
def no_constants_of_other_tests():
    constant.cache_clear()
    yield
    constant.cache_clear()


def test_a_step_starts_what_is_recorded_and_waits_for_nothing(tmp_path):
    found = {row["part"]: row for row in step_launches.table("CIFAR-10 task 2", tmp_path)}
    assert found["all"]["waits"] == 0 and found["all"]["copies"] == 1
    assert found["network"]["operations"] > found["losses"]["operations"]
    for part, row in recorded("CIFAR-10 task 2").items():
        if part in ("losses", "update", "network"):  # rendering: whatever colors the views have drawn
            assert all(found[part][key] == int(row[key]) for key in ("operations", "triton", "copies", "waits"))


@pytest.mark.parametrize("name", list(step_launches.SHAPES))
def test_all_losses_of_a_step_are_sixteen_operations(name, tmp_path):
    found = step_launches.counts(step_launches.quick_losses(name, tmp_path))
    assert found == {"operations": 16, "triton": 9, "copies": 0, "waits": 0}
    assert {key: int(recorded(name)["losses"][key]) for key in found} == found


def test_what_happened_is_found_in_our_own_lines(tmp_path):
    """Also where torch's own files lie below the project's folder, as in a virtual environment there."""
    with standing_in() as watch:
        torch.zeros(2, device=DEVICE).add(1)
    assert {event.place.split(":")[0] for event in watch.events} == {"tests/benchmarks/test_step_launches.py"}


def test_every_recorded_step_of_today_waits_for_nothing_and_those_of_before_did():
    for name in step_launches.SHAPES:
        with step_launches.RESULTS.open(newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["shapes"] == name and row["part"] == "all"]
        assert int(rows[0]["waits"]) > 100 and int(rows[-1]["waits"]) == 0 and int(rows[-1]["copies"]) == 1
