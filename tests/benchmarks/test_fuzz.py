"""The short version of the fuzz: a fixed choice of cases that don't train, each in a child of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nncsl.benchmarks.fuzz.case import Case
from nncsl.benchmarks.fuzz.cases import cases
from nncsl.benchmarks.fuzz.child import prints_a_table

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="watches its children by Linux's /proc")


def test_cases_are_many_and_the_same_for_a_seed():
    first, again = cases(0), cases(0)
    assert [case.name for case in first] == [case.name for case in again] != [case.name for case in cases(1)]
    assert len(first) >= 4400


def test_no_case_names_a_place_outside_its_folder():
    """As root, a file that is renamed over a device replaces it."""
    for case in cases(0):
        for word in case.words:
            assert not word.split("=")[-1].startswith(("/", "~", "..")), case.name


def test_the_name_of_a_written_table_is_not_taken_for_one():
    assert prints_a_table(Case("metrics", ("metrics", "run")))
    for words in (("--out", "=1.csv"), ("--out==1.csv",), ("-o", "=1.csv")):
        assert not prints_a_table(Case("metrics", ("metrics", "run", *words)))
    assert not prints_a_table(Case("report", ("report", "run")))


def test_flags_settings_and_files_end_with_an_answer(tmp_path):
    words = [sys.executable, "-m", "nncsl.benchmarks.fuzz", "--short", "--work", str(tmp_path)]
    ended = subprocess.run(words, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    rows = [json.loads(line) for line in (tmp_path / "seed-0.jsonl").read_text().splitlines()]
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert len(rows) >= 100 and len({row["command"] for row in rows}) >= 15
