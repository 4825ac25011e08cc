"""The throughput benchmark at its smallest: rates against the machine's peak, and the parts of a step."""

import json

from nncsl.benchmarks import throughput


def test_rates_peaks_and_parts_are_measured(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(throughput, "CANDIDATES", [throughput.NetworkConfig("imagenet", 8, (1,), 16)])
    out = tmp_path / "throughput.json"
    assert throughput.main(["--repeats", "1", "--out", str(out)]) == 0
    report = json.loads(out.read_text())
    assert all(value > 0 for value in report["peak"].values())
    small, preset = report["networks"]
    assert preset["network"] == "imagenet stem, width 32, blocks [1, 1]"
    assert 0 < small["mflop_per_view"] < preset["mflop_per_view"] and 0 < preset["share_of_peak"] < 2
    assert report["step"]["views_per_second"] > 0 and report["step"]["backward_ms"] > 0
    assert "of the peak" in capfd.readouterr().out
