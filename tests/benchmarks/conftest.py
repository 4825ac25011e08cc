"""What the tests of campaigns share: a folder of their own."""

import pytest
import yaml

from nncsl.benchmarks.accuracy import campaign
from tests.benchmarks.campaigns import SMALL


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a campaign of digits; results and runs stay below tmp_path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(campaign, "CAMPAIGNS", tmp_path)
    monkeypatch.setattr(campaign, "RESULTS", tmp_path / "results")

    def written(name="tiny", runs=("csl", "er"), seeds=(3,), settings=SMALL, **more):
        runs = runs if isinstance(runs, dict) else {run: {"method": run} for run in runs}
        content = {"preset": "digits", "seeds": list(seeds), "settings": dict(settings), "runs": runs, **more}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(content))

    return written
