"""A campaign in a temporary folder: recorded once, skipped when recorded, made again when its settings change."""

import json

import pytest
import yaml

from benchmarks.accuracy import __main__ as accuracy


@pytest.fixture
def campaign(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(accuracy, "CAMPAIGNS", tmp_path)
    monkeypatch.setattr(accuracy, "RESULTS", tmp_path / "results")

    def write(epochs):
        small = {"network.width": 8, "network.hidden": 16, "tasks": 1, "epochs": epochs}
        runs = {"csl": {"method": "csl"}, "er": {"method": "er"}}
        content = {"preset": "digits", "seeds": [3], "settings": small, "runs": runs}
        (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(content))

    return write


def test_runs_are_recorded_skipped_and_made_again(campaign, tmp_path, capfd):
    campaign(epochs=1)
    assert accuracy.main(["run", "tiny", "--jobs", "2"]) == 0
    record = json.loads((tmp_path / "results" / "tiny" / "csl-seed3.json").read_text())
    assert record["config"]["method"] == "csl" and record["config"]["seed"] == 3
    assert record["summary"]["seed"] == 3 and "--seed 3" in record["command"] and record["commit"]
    capfd.readouterr()
    assert accuracy.main(["run", "tiny"]) == 0
    assert capfd.readouterr().out.count("recorded") == 2
    campaign(epochs=2)
    accuracy.main(["table", "tiny"])
    assert "csl" not in capfd.readouterr().out  # what other settings made is not shown
    assert accuracy.main(["run", "tiny"]) == 0
    record = json.loads((tmp_path / "results" / "tiny" / "csl-seed3.json").read_text())
    assert record["config"]["epochs"] == 2


def test_a_failure_is_said_and_ends_with_an_error(campaign, tmp_path, capfd):
    campaign(epochs=1)
    content = yaml.safe_load((tmp_path / "tiny.yaml").read_text())
    content["runs"] = {"csl": {"method": "csl", "lr_peak": 1e30, "lr_start": 1e30}}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(content))
    assert accuracy.main(["run", "tiny"]) == 1
    assert "failed" in capfd.readouterr().out
