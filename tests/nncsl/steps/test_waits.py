"""No step waits for its device: seen on a stand-in for one, which writes down who looks at its tensors."""

import pytest
import torch

from nncsl import methods
from nncsl.benchmarks.rehearsal import Rehearsal
from nncsl.benchmarks.stand_in import DEVICE, standing_in
from nncsl.data.catalog import open_data
from nncsl.steps.transfer import constant

SHORT = ("tasks=5", "unlabeled_fraction=0.1", "bank_views=1", "unlabeled_batch=8", "labeled_batch=8", "memory=100")
SHORT += ("network.blocks=[1]", "network.width=8", "network.hidden=16")
QUICK = {"gdumb": ("own.epochs=0",), "ordisco": ("own.channels=8",)}
NNCSL = [
    (),
    ("teacher_mode=model",),
    ("bank_residency=device",),
    ("bank_residency=device", "bank_codec=int8"),
    ("unlabeled_memory=40",),
    ("distillation=kd", "optimizer=lars"),
    ("distillation=feature",),
]
CASES = [("nncsl", 0, settings) for settings in NNCSL]
CASES += [(name, 0, QUICK.get(name, ())) for name in methods.METHODS if name not in ("nncsl", "joint")]
CASES += [
    ("joint", 0, ()),
    ("lwf", 1, ()),
    ("foster", 1, ()),
    ("pseudoer", 1, ()),
    ("er", 0, ("own.optimizer=preset",)),
]


@pytest.fixture(autouse=True)
def no_constants_of_other_tests():
    """A constant stays where it was first wanted: here, on a device that ends with the test."""
    constant.cache_clear()
    yield
    constant.cache_clear()


def rehearse(small, folder, *settings, index=1, device=DEVICE, phase=0):
    config = methods.settled(small(*SHORT, *settings))
    source, tasks = open_data(config)
    return Rehearsal(config, source, tasks, min(index, len(tasks) - 1), folder, device, phase)


@pytest.mark.filterwarnings("ignore:.*copying from a non-meta parameter")  # gdumb's new weights: any do here
@pytest.mark.parametrize(("method", "phase", "settings"), CASES, ids=lambda x: str(x))
def test_a_step_waits_for_nothing(small, tmp_path, method, phase, settings):
    rehearsal = rehearse(small, tmp_path, f"method={method}", *settings, phase=phase)
    rehearsal.step(0)  # the first one brings constants to the device, where they stay
    seen, losses = rehearsal.step(1)
    waits = [place for watch in seen.values() for place in watch.places("wait")]
    assert not waits
    assert seen["arrive"].count("copy") == 1 and seen["update"].count("copy") == 0
    drawn_in_the_step = {"gdumb": 1, "ccic": 4, "xder": 1, "ordisco": 99}  # random numbers, from the host
    assert seen["losses"].count("copy") <= drawn_in_the_step.get(method, 0)
    assert losses.total.device == DEVICE and losses.total.isfinite()


def test_the_stand_in_computes_what_the_cpu_computes(small, tmp_path):
    """Nearly: on devices that round products, views are summed in two halves, and neighbors in another order."""
    for name in ("there", "here"):
        (tmp_path / name).mkdir()
    there, here = (
        rehearse(small, tmp_path / name, device=device).step(1)[1].parts
        for name, device in (("there", DEVICE), ("here", torch.device("cpu")))
    )
    assert set(there) == set(here) and len(here) == 4
    assert all(there[name].item() == pytest.approx(here[name].item(), rel=1e-5) for name in here)


@pytest.mark.parametrize("wait", [
    lambda x: x.sum().item(),
    lambda x: x[x > 1],
    lambda x: x.nonzero(),
    lambda x: x.masked_select(x > 1),
    lambda x: x.unique(),
    lambda x: bool(x.isfinite().all()),
    lambda x: x.cpu(),
    lambda x: x[[0, 1]],
    lambda x: x[torch.tensor([1, 0])],
    lambda x: x.add_(torch.ones(3).to(DEVICE)),
    lambda x: x.long().bincount(),
    lambda x: x.repeat_interleave(torch.tensor([1, 2, 1]).to(DEVICE, non_blocking=True)),
], ids=range(12))  # fmt: skip
def test_the_stand_in_sees_what_makes_a_host_wait(wait):
    with standing_in() as watch:
        x = torch.arange(3.0).to(DEVICE, non_blocking=True)
        assert not watch.count("wait") and watch.count("copy") == 1
        wait(x)
    assert watch.count("wait") >= 1


def test_what_may_be_looked_at_later_is_no_wait():
    with standing_in() as watch:
        x = torch.arange(3.0).to(DEVICE, non_blocking=True)
        rows = torch.tensor([0, 2]).to(DEVICE, non_blocking=True)
        later = x.index_select(0, rows).mul(2).to("cpu", non_blocking=True)
    assert not watch.count("wait") and watch.count("copy") == 2 and watch.count("operation") == 2
    assert later.tolist() == [0, 4]
