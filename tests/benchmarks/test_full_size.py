"""Bytes with the paper's network: foretold from a small network's run, compared with a run that has the other one."""

import pytest

from nncsl import config, engine
from nncsl.benchmarks.accuracy import full_size
from nncsl.config import NetworkConfig, build
from nncsl.record import ledger
from tests.nncsl.conftest import run_maker

SHORT = ["tasks=2", "epochs=1", "warmup_epochs=1", "unlabeled_batch=160", "unlabeled_fraction=0.2"]
SMALL = [*SHORT, "network.width=8", "network.hidden=16"]
LARGER = [*SHORT, "network.width=16", "network.blocks=[1,1,1,1]", "network.hidden=32"]
SMALL_GAN = ["own.channels=4", "labels=20/class"]
FEATURES_OF_FOSTER = {"bank", "own.fc", "own.aux"}  # a bank of features, and heads on those of two networks


@pytest.mark.parametrize(
    ("method", "settings", "grows", "stays"),
    [
        ("nncsl", ["teacher_mode=model"], {"teacher"}, set()),
        ("nncsl", ["bank_refresh_epochs=1"], {"teacher"}, set()),
        ("xder", ["own.contrast_views=2"], set(), set()),
        ("icarl", ["teacher_mode=model"], {"teacher", "own.means"}, set()),
        ("oewc", [], {"own.fisher", "own.anchor"}, set()),
        ("ordisco", SMALL_GAN, {"own.average"}, set()),
        ("foster", [], {"own.other"}, FEATURES_OF_FOSTER),
    ],
)
def test_a_small_runs_ledger_is_that_of_a_larger_network_to_the_byte(tmp_path, method, settings, grows, stays):
    """grows: what the larger network makes larger; stays: what is left as it was although it would be larger."""
    settings = [f"method={method}", *settings]
    if "bank_refresh_epochs=1" in settings:
        settings = [*settings, "epochs=2"]
    small, larger = (trained(tmp_path / size, [*base, *settings]) for size, base in (("a", SMALL), ("b", LARGER)))
    foretold = full_size.with_network(small[1], small[0].config, larger[0].config.network)
    counted, before = ledger.fullest(larger[1]), ledger.fullest(small[1])
    compared = set(counted) - stays - {ledger.TOTAL}
    assert {name: foretold[name] for name in compared} == {name: counted[name] for name in compared}
    assert {name for name in compared if foretold[name] != before[name]} == grows
    assert all(foretold[name] == before[name] < counted[name] for name in stays & set(counted))


def test_a_second_network_beside_images_that_training_decides_on(tmp_path):
    """Which images PseudoER keeps depends on what its network guesses; what that network weighs does not."""
    small, larger = (
        trained(tmp_path / size, [*base, "method=pseudoer"]) for size, base in (("a", SMALL), ("b", LARGER))
    )
    foretold = full_size.with_network(small[1], small[0].config, larger[0].config.network)
    assert foretold["own.resting"] == larger[1][0]["own.resting"] > small[1][0]["own.resting"]


def trained(folder, assignments):
    """A run on digits, and what it kept in each of its tasks."""
    folder.mkdir()
    run = run_maker(folder)(config.load("digits", map(build.parse_assignment, assignments)))
    _, state = engine.train(run)
    return run, [state.kept[task] for task in sorted(state.kept)]


@pytest.mark.parametrize("dataset", [*full_size.OF_THE_PAPER, "digits"])
def test_the_papers_network_is_resnet_18(dataset):
    network = full_size.paper_network(dataset)
    assert (network.backbone, network.width, network.blocks) == ("residual", 64, (2, 2, 2, 2))
    assert (network.hidden, network.projection) == (NetworkConfig().hidden, 128)


@pytest.mark.parametrize(("name", "classes"), [("cifar10", 10), ("cifar100", 100)])
def test_a_teacher_of_the_reduced_presets_weighs_as_much_as_that_of_the_full_ones(name, classes):
    """ResNet-18 without its classifier has 11.2 million weights; counted by hand here, with projector and head."""
    reduced = build.plain(config.load(f"{name}-small", [{"teacher_mode": "model"}]))
    record = {"config": reduced, "summary": {"kept_by_task": [{"memory": 1000, "teacher": 500_000}]}}
    own = full_size._sizes(config.recorded(reduced))["teacher"]
    assert 400_000 < own < 700_000
    convolutions = 3 * 64 * 9 + 4 * 64 * 64 * 9
    normalized = 5 * 64
    for before, width in ((64, 128), (128, 256), (256, 512)):
        convolutions += before * width * 9 + 3 * width * width * 9 + before * width
        normalized += 5 * width
    backbone = 4 * (convolutions + 4 * normalized)  # BatchNorm: scale, shift, and moments of each channel
    assert backbone == pytest.approx(44.7e6, rel=0.002)
    found = full_size.kept(record)
    assert found["memory"] == 1000 and found["total"] == 1000 + found["teacher"]
    beside_the_backbone = found["teacher"] - (500_000 - own) - backbone - 4 * (512 + 1) * classes
    assert 0 < beside_the_backbone < 2.5e6  # the projector


def test_a_run_that_counted_nothing_has_no_bytes():
    assert full_size.kept({"summary": {}, "config": {}}) is None
