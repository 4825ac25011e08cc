"""Short real runs on digits, trained once, and the digits' test images as files."""

import pytest
from PIL import Image

from nncsl import config, runs
from nncsl.config import build
from nncsl.data.sources import SourceOptions, open_source

QUICK = ["epochs=2", "warmup_epochs=0", "tasks=2", "network.width=8", "network.hidden=16", "bank_views=1", "memory=20"]
OWN = {"gdumb": ["own.epochs=2"], "ordisco": ["own.channels=8"]}


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A function from a method to the folder of its complete run in two tasks."""
    parent, done = tmp_path_factory.mktemp("use"), {}

    def train(method="nncsl", *more):
        key = " ".join([method, *more])
        if key not in done:
            done[key] = parent / str(len(done))
            settings = [*QUICK, f"method={method}", *OWN.get(method, []), *more]
            runs.start(config.load("digits", map(build.parse_assignment, settings)), done[key], quiet=True)
        return done[key]

    return train


@pytest.fixture(scope="session")
def digits():
    return open_source("digits", SourceOptions())


@pytest.fixture(scope="session")
def files(tmp_path_factory, digits):
    """The test images as PNG files, in their order."""
    folder = tmp_path_factory.mktemp("files")
    for number, pixels in enumerate(digits.test.array):
        Image.fromarray(pixels[:, :, 0]).save(folder / f"{number:03}.png")
    return sorted(folder.iterdir())
