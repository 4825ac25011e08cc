"""Losses that are looked at later: a diverged run stops soon, and never saves what it has become."""

import pytest
import torch

from nncsl import engine, methods
from nncsl.methods.base import Losses
from nncsl.methods.nncsl import NNCSL
from nncsl.methods.supervised import Finetune
from nncsl.record import checkpoint
from nncsl.steps.divergence import DivergenceError, Lookout


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


def test_weighted_parts_are_added_up_on_the_host(small, tmp_path):
    lookout = Lookout(small(), tmp_path, torch.device("cpu"), 0)
    parts = {"snn": torch.tensor(1.0), "lin": torch.tensor(2.0, dtype=torch.float64)}
    lookout.note(Losses({"snn": 1.0, "lin": 0.5}, parts), 0, 0, 0.1)
    assert lookout.latest == {"snn": 1.0, "lin": 2.0}
    with pytest.raises(DivergenceError, match=r"the loss is inf in task 1, epoch 1 \(snn 1, lin inf; lr 0.1\)"):
        lookout.note(Losses({"snn": 1.0, "lin": 0.5}, parts | {"lin": torch.tensor(float("inf"))}), 0, 0, 0.1)


def test_weights_begin_the_backward_pass_as_their_sum_would():
    x = torch.randn(5, requires_grad=True)
    scaler = torch.amp.GradScaler("cpu", enabled=False)

    def gradient(how):
        parts = {"square": x.square().sum(), "cube": (x**3).sum().double(), "fixed": torch.tensor(3.0)}
        losses = Losses({"square": 1.0, "cube": 0.2, "fixed": 7.0}, parts)
        x.grad = None
        losses.total.backward() if how == "sum" else losses.backward(scaler)
        return x.grad

    assert torch.equal(gradient("sum"), gradient("weights"))
    assert not any(part.requires_grad for part in Losses({"a": 1.0}, {"a": x.sum()}).detached().parts.values())


def test_flushing_looks_at_all_of_them(small, tmp_path):
    lookout = Lookout(small(), tmp_path, torch.device("cpu"), 100)
    lookout.note(losses(float("inf")), 0, 0, 0.1)
    with pytest.raises(DivergenceError, match="the loss is inf"):
        lookout.flush()
    lookout.flush()  # said once


@pytest.mark.parametrize("delay", [0, 1, 1000])
def test_nothing_is_saved_after_a_loss_that_nobody_has_looked_at(small, make_run, monkeypatch, delay):
    """A loss breaks in the middle of the second epoch; weights stay finite, so that only the look can notice."""
    compute, taken = Finetune.losses, []

    def breaking(self, step):
        taken.append(step.now)
        found = compute(self, step).total
        broken = step.now.epoch == 1 and step.now.step == 1
        return Losses(found * 0 + float("nan") if broken else found * 0, {"lin": found.detach()})

    def without_gradients(self, closure=None):
        assert taken

    monkeypatch.setattr(Finetune, "losses", breaking)
    monkeypatch.setattr(torch.optim.SGD, "step", without_gradients)
    begin = Lookout.__init__
    monkeypatch.setattr(Lookout, "__init__", lambda self, *arguments: begin(self, *arguments, delay=delay))
    run = make_run(small("method=finetune", "tasks=1", "epochs=3", "unlabeled_batch=200", "network.blocks=[1]"))
    with pytest.raises(DivergenceError, match="the loss is nan in task 1, epoch 2"):
        engine.train(run)
    saved = checkpoint.load(run.checkpoint_path)["state"]
    assert (saved["epoch"], saved["step"]) == (1, 0)
    steps = len(run.source.train_labels) // 200
    assert len(taken) == steps + min(2 + delay, steps)


WILD = ["tasks=2", "epochs=2", "warmup_epochs=0", "network.blocks=[1]", "unlabeled_batch=350", "bank_views=1"]
CASES = {name: (f"method={name}",) for name in methods.METHODS}
CASES |= {
    "kd": ("distillation=kd",),
    "feature": ("distillation=feature",),
    "copied": ("teacher_mode=model",),
    "int8": ("bank_codec=int8",),
    "fp32": ("bank_codec=fp32",),
    "half": ("precision=fp16",),
    "micro": ("micro_batch=100",),
}


@pytest.mark.parametrize("case", CASES)
def test_whatever_diverges_says_so_in_one_way(small, make_run, case):
    """At a rate of a million; some methods end all the same, with finite weights."""
    settings = CASES[case]
    method = methods.find(settings[0].removeprefix("method=") if "method=" in settings[0] else "nncsl")
    own = ["own.epochs=2"] if hasattr(method.Settings, "epochs") else []
    rate = "own.lr=1e6" if hasattr(method.Settings, "lr") else "lr_peak=1e6"
    run = make_run(small(*WILD, *settings, *own, rate))
    try:
        engine.train(run)
    except DivergenceError as error:
        assert "The last good checkpoint is in" in str(error) and "Start a new run with a lower" in str(error)
    saved = checkpoint.load(run.checkpoint_path)["method"]
    assert all(value.isfinite().all() for name, value in saved.items() if name.startswith("network."))


def test_answers_that_no_bank_can_keep_are_divergence(small, make_run):
    """Weights are finite still, but not what they make of an image."""
    run = make_run(small(*WILD, "distillation=kd"))
    begin = NNCSL.asks

    def huge(self, phase, task, memory):
        if task.index:
            with torch.no_grad():
                self.network.head.weight.mul_(1e30)
        return begin(self, phase, task, memory)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NNCSL, "asks", huge)
        with pytest.raises(DivergenceError, match=r"the old network's answers reach .* at the beginning of task 2"):
            engine.train(run)
