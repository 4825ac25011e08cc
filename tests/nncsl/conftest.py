"""A small real run on digits, shared by the tests of the learner."""

import pytest
import torch

from nncsl import config, engine, methods, runs
from nncsl.config import build
from nncsl.data.catalog import open_data
from nncsl.distributed import ALONE
from nncsl.terminal import Reporter

SMALL = ["epochs=2", "warmup_epochs=1", "network.width=8", "network.hidden=16", "bank_views=2", "unlabeled_batch=64"]
DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


@pytest.fixture(params=DEVICES)
def device(request):
    return torch.device(request.param)


@pytest.fixture
def small():
    """A function from assignments to a quick digits configuration."""

    def load(*assignments):
        return config.load("digits", map(build.parse_assignment, [*SMALL, *assignments]))

    return load


@pytest.fixture
def make_run(tmp_path):
    """A function from a configuration to a run in a temporary folder, ready for engine.train."""
    return run_maker(tmp_path)


def run_maker(parent):
    """The same, for a folder that is given."""

    def make(loaded, name="run", ranks=ALONE):
        loaded = methods.settled(loaded)
        source, tasks = open_data(loaded)
        folder = parent / name
        folder.mkdir(exist_ok=not ranks.alone or (folder / "checkpoint").exists())
        reporter = Reporter(len(tasks), quiet=True, silent=not ranks.writes)
        return engine.Run(loaded, source, tasks, folder, runs.find_device(loaded.device), reporter, ranks)

    return make
