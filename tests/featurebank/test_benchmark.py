"""The benchmark runs and measures what it says; its figures are recorded elsewhere, on quiet machines."""

import csv
import json

import pytest

from nncsl.benchmarks import bank


def test_quick_run_records_plausible_figures(tmp_path):
    assert bank.main(["--quick", "--out", str(tmp_path)]) == 0
    about = json.loads((tmp_path / "bank.json").read_text())
    assert (
        about["command"] == f"python -m nncsl.benchmarks.bank --quick --out {tmp_path}"
        and about["missed targets"] == []
    )
    with (tmp_path / "bank.csv").open() as file:
        measured = {(row["what"], row["measure"]): float(row["value"]) for row in csv.DictReader(file)}
    assert 256 + 12 <= measured["bank fp16", "bytes per feature with key"] < 256 + 15
    assert measured["bank.index compressed", "recall of 20"] > 0.9
    assert {what for what, _ in measured} >= {"np.memmap int8", "h5py fp16", "bank int8, disk", "torch matmul + topk"}
    found = {codec: measured[codec, "largest error of a probability"] for codec in bank.CODECS}
    errors = [error for codec, error in found.items() if codec != "int4"]  # pq has learned these few clusters
    assert (
        errors == sorted(errors)
        and found["int8"] < found["int4"] < 0.1
        and errors[0] == 0
        and errors[1] < 1e-3
        and errors[2] < 1e-2
    )
    assert measured["fp16", "same top class"] > 0.999


@pytest.mark.parametrize(("value", "target", "reached"), [(2, "<= 2", True), (1, "< 1", False), (199, ">= 200", False)])
def test_targets(value, target, reached):
    assert bank.reached(value, target) is reached
