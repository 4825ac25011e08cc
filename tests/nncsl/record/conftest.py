"""A run that has ended, for tests that damage its files or put links among them."""

import shutil

import pytest

from nncsl import config, runs
from nncsl.config import build

TINY = ["tasks=2", "epochs=2", "network.width=4", "network.hidden=8", "network.blocks=[1]", "bank_views=1"]
TINY += ["unlabeled_batch=350", "memory=20"]


def tiny(*assignments):
    return config.load("digits", map(build.parse_assignment, [*TINY, *assignments]))


@pytest.fixture(scope="package")
def ended(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ended") / "run"
    runs.start(tiny(), folder, quiet=True, command="nncsl train")
    return folder


@pytest.fixture
def run(ended, tmp_path):
    return shutil.copytree(ended, tmp_path / "run")
