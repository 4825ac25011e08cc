"""One short real run whose bank the tests look into; they copy it before they change it."""

import pytest

from nncsl import config, runs
from nncsl.config import build

QUICK = ["epochs=1", "tasks=2", "network.width=8", "network.hidden=16", "bank_views=1", "memory=20"]


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """The folder of a complete run on digits in two tasks."""
    folder = tmp_path_factory.mktemp("bank") / "run"
    runs.start(config.load("digits", map(build.parse_assignment, QUICK)), folder, quiet=True)
    return folder
