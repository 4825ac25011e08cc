"""The benchmark runs end to end on real (small) problems and leaves a csv, what made it, and its figures."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from nncsl.benchmarks import kernels as benchmark
from nncsl.benchmarks import kernels_providers


@pytest.fixture(autouse=True)
def same_threads_afterwards() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_measures_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--queries", "64", "--dim", "16", "--supports", "20", "100", "--classes", "5"]
    providers = ["--providers", "eager", "sdpa", "kernels"]
    arguments = ["--device", "cpu", "--threads", "1", "--quick", *sizes, *providers, "--out", str(tmp_path)]
    assert benchmark.main(arguments) == 0
    with (tmp_path / "kernels-cpu-quick.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    expected = {("snn", p, m) for p in ("eager", "sdpa", "kernels") for m in ("forward", "backward", "full")}
    expected |= {("nnd", p, m) for p in ("eager", "kernels") for m in ("forward", "backward", "full")}
    assert {(row["kernel"], row["provider"], row["mode"]) for row in rows} == expected
    assert all(0 < float(r["ms_q20"]) <= float(r["ms_q50"]) <= float(r["ms_q80"]) for r in rows)
    facts = json.loads((tmp_path / "kernels-cpu-quick.json").read_text())
    assert facts["torch"] == torch.__version__
    assert "x eager" in capsys.readouterr().out
    figures = [tmp_path / f"kernels-cpu-quick-{kernel}.svg" for kernel in ("snn", "nnd")]
    assert all(figure.stat().st_size > 1000 for figure in figures)
    drawn = figures[0].read_bytes()
    assert benchmark.main(["--plot", str(tmp_path / "kernels-cpu-quick.csv")]) == 0
    assert figures[0].read_bytes() == drawn


@pytest.mark.parametrize("kernel", ["snn", "nnd"])
def test_all_providers_compute_the_same(kernel: str) -> None:
    p = kernels_providers.problem(kernel, 64, 40, 7, 16, "cpu", torch.float32)
    names = ["eager", "sdpa", "kernels"]
    results = [provider(p) for provider in kernels_providers.providers(kernel, names).values()]
    assert len(results) == (3 if kernel == "snn" else 2)
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], rtol=1e-4, atol=1e-5)
