"""The memory benchmark at a small batch: real processes, a csv that is taken up again, a figure."""

import csv

from nncsl.benchmarks import memory


def test_ways_are_measured_in_their_own_processes_and_only_once(tmp_path, capsys):
    out = tmp_path / "memory.csv"
    arguments = ["--batch", "8", "--supports", "10", "--rounds", "1", "--device", "cpu", "--out", str(out)]
    arguments += ["--ways", "one pass", "spilled to disk"]
    assert memory.main(arguments) == 0
    rows = {row["way"]: row for row in csv.DictReader(out.open())}
    assert set(rows) == {"one pass", "micro-batch 32, spilled to disk"}
    assert all(int(row["activations"]) > 0 and float(row["cpu_seconds"]) > 0 for row in rows.values())
    assert int(rows["micro-batch 32, spilled to disk"]["activations"]) < int(rows["one pass"]["activations"])
    assert out.with_suffix(".png").stat().st_size > 1000
    before = out.read_bytes()
    capsys.readouterr()
    assert memory.main(arguments) == 0
    assert "round 1" not in capsys.readouterr().out and out.read_bytes() == before


def test_ratios_are_taken_within_a_round():
    """A slow round is slow for both: the median of ratios does not see it."""
    rows = []
    for turn, speed in enumerate((1.0, 1.1, 9.0)):
        for way, seconds, size in (("the paper's way", 10.0, 600), ("features", 8.0, 300)):
            row = {"phase": "later", "supports": 10, "way": way, "round": turn, "device": "cpu", "activations": size}
            rows.append(row | {"seconds": 0, "cpu_seconds": seconds * speed})
    paper, features = memory.costs(rows, "later", 10)
    assert (paper.time_ratio, paper.memory_ratio) == (1.0, 1.0)
    assert abs(features.time_ratio - 0.8) < 1e-9 and features.memory_ratio == 0.5 and features.rounds == 3
