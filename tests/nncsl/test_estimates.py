"""Runs that can't fit are refused with the figures, before anything is made."""

import re
from pathlib import Path

import pytest

from nncsl import cli, config, methods, networks
from nncsl.config import NetworkConfig
from nncsl.data.catalog import open_data
from nncsl.errors import ConfigError
from nncsl.planner import estimates


@pytest.mark.parametrize(("width", "blocks"), [(64, (2, 2, 2, 2)), (16, (1, 1, 1)), (32, (3,))])
def test_the_estimate_is_about_the_networks_own_size(width, blocks):
    settings = NetworkConfig(width=width, blocks=blocks)
    assert estimates.network_bytes(settings) == pytest.approx(
        networks.nbytes(networks.Network(settings, 3, 10)), rel=0.1
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--set", "network.width=100000"], "network.width=100000.*take about [0-9,.]+ GB"),
        (["--bank-views", "50000000"], "bank_views=50000000.* GB on disk.*rows"),
        (["--set", "bank_codec=pq", "--set", "bank_views=1", "--set", "unlabeled_fraction=0.01"], "pq' needs 256 rows"),
        (["--memory-budget", "2"], "did you mean 2GB"),
        (["--seed", str(2**64)], "seed="),
        (["--memory", "9" * 400], "memory=999"),
    ],
)
def test_what_can_not_fit_leaves_nothing(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", "--quiet", "--out", "out", *words]) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert re.search(said, error), error
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["x" * 256, "a/" + "x" * 300 + "/b", "caf\udce9", "a\x1bb"])
@pytest.mark.parametrize("flag", ["--out", "--data-dir", "--resume"])
def test_names_that_no_run_can_have(flag, name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        cli.main(["train", flag, name])
    assert ended.value.code == 2 and flag in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_bank_for_memory_is_held_against_memory(monkeypatch, small):
    loaded = small("bank_views=3000")
    source, tasks = open_data(loaded)
    monkeypatch.setattr(estimates, "available_memory", lambda: 10**8)
    with pytest.raises(ConfigError, match=r"GB in memory.*bank_residency=disk"):
        estimates.check_bank(loaded, source.num_classes, tasks, Path())
    estimates.check_bank(small("bank_views=3000", "bank_residency=disk"), source.num_classes, tasks, Path())


def test_methods_without_a_bank_are_not_asked(small):
    loaded = small("method=er", "bank_codec=pq")
    source, tasks = open_data(loaded)
    estimates.check_bank(methods.settled(loaded), source.num_classes, tasks, Path())
    assert config.load("digits").bank_codec == "fp16"
