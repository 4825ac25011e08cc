"""Losses that are looked at later: a diverged run stops soon, and never saves what it has become."""

import pytest
import torch

from nncsl import divergence, engine
from nncsl.divergence import DivergenceError, Lookout
from nncsl.methods.base import Losses
from nncsl.record import checkpoint


def losses(value):
    return Losses(torch.tensor(value), {"snn": torch.tensor(value), "lin": torch.tensor(2.0)})


@pytest.mark.parametrize("delay", [0, 3])
def test_a_loss_is_looked_at_after_the_delay_and_no_later(small, tmp_path, delay):
    lookout = Lookout(small(), tmp_path, torch.device("cpu"), delay)
    for _ in range(5):
        lookout.note(losses(1.0), 0, 0, 0.1)
    assert lookout.latest == {"snn": 1.0, "lin": 2.0}
    if delay:
        lookout.note(losses(float("nan")), 1, 4, 0.25)
        for _ in range(delay - 1):
            lookout.note(losses(3.0), 1, 4, 0.25)
    with pytest.raises(DivergenceError, match=r"the loss is nan in task 2, epoch 5 \(snn nan, lin 2; lr 0.25\)"):
        lookout.note(losses(3.0 if delay else float("nan")), 1, 4, 0.25)


def test_flushing_looks_at_all_of_them(small, tmp_path):
    lookout = Lookout(small(), tmp_path, torch.device("cpu"), 100)
    lookout.note(losses(float("inf")), 0, 0, 0.1)
    with pytest.raises(DivergenceError, match="the loss is inf"):
        lookout.flush()
    lookout.flush()  # said once


@pytest.mark.parametrize("delay", [0, 2, 1000])
def test_nothing_is_saved_after_a_loss_that_nobody_has_looked_at(small, make_run, monkeypatch, delay):
    """The loss breaks in the middle of the second epoch; weights stay finite, so that only the look can notice."""
    from nncsl.methods.nncsl import NNCSL

    compute, steps = NNCSL.losses, []

    def breaking(self, step):
        found = compute(self, step)
        steps.append(step.now.number)
        broken = found.total.detach() * (float("nan") if step.now.number == step.phase.steps + 1 else 1.0)
        return Losses(found.total + (broken - broken.nan_to_num()) * 0 if broken.isfinite() else broken, found.parts)

    monkeypatch.setattr(NNCSL, "losses", lambda self, step: without_gradient(breaking(self, step)))
    monkeypatch.setattr(divergence, "DELAY", delay)
    monkeypatch.setattr(Lookout, "__init__", delayed(Lookout.__init__, delay))
    run = make_run(small("tasks=1", "epochs=3", "warmup_epochs=0"))
    with pytest.raises(DivergenceError, match="the loss is nan in task 1, epoch 2"):
        engine.train(run)
    each = len(steps) - 1
    saved = checkpoint.load(run.checkpoint_path)["state"]
    assert (saved["epoch"], saved["step"]) == (1, 0)
    per_epoch = run.tasks[0].unlabeled.size // 64
    assert each <= min(per_epoch + 1 + delay, 2 * per_epoch)


def without_gradient(found):
    """A loss that changes no weight, so that they stay finite whatever it is."""
    leaf = torch.zeros((), requires_grad=True)
    return Losses(found.total.detach() + leaf, found.parts)


def delayed(init, delay):
    def begin(self, config, folder, device):
        init(self, config, folder, device, delay)

    return begin
