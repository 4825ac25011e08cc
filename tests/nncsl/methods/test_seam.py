"""What the seam promises, asked by a method that uses all of it: stopped at any step, it ends the same."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from nncsl import engine, methods, networks
from nncsl.batches import plain_keys
from nncsl.data.tasks import Forbidden
from nncsl.featurebank import fingerprint
from nncsl.methods import schedules
from nncsl.methods.base import Asked, Losses, Method, Phase, head_logits, unit_projections
from tests.nncsl.scenes import SecondTask, trained_in_pieces


class Restless(Method):
    """Makes and drops modules, keeps buffers of changing size, asks different things, has an idle optimizer."""

    def phases(self, task):
        first = Phase("first", 1, 3, schedules.milestones([0.5], 0.1))
        return [first, Phase("second", 2, 2, schedules.cosine(0.1))]

    def begin(self, phase, task):
        features = self.network.head.in_features
        if phase.name == "first":
            self.extra = None  # of the task before
            self.grown = nn.Linear(features, len(task.seen))
            new = self.grown
        else:
            self.extra = nn.Linear(features, self.config.network.projection)
            new = self.extra
        return [torch.optim.SGD(self.network.parameters(), lr=0.02), torch.optim.Adam(new.parameters(), lr=0.01)]

    def asks(self, phase, task, memory):
        if phase.name == "first":
            return {"all": Asked("weak", memory.ids, head_logits, role="replay", unit=False)}
        return {"all": Asked("weak", np.concatenate([task.labeled, memory.ids]), unit_projections, role="support")}

    def draw(self, draws, now):
        ids = np.concatenate([draws.task.labeled, draws.memory.ids])
        return {"all": draws.labeled_views("weak", draws.choose(ids, now, 6, "mine"), now)}

    def losses(self, step):
        (outputs,) = step.see("all")
        labels, group = step.labels("all"), step.batch["all"]
        noise = torch.rand(len(group), generator=step.generator("noise"))
        lin = (F.cross_entropy(self.seen_logits(outputs.features, step.task), labels, reduction="none") * noise).mean()
        parts, guided = {"lin": lin}, outputs.features.new_zeros(())
        if step.phase.name == "first":
            if step.now.number % 2:
                guided = F.cross_entropy(self.grown(outputs.features.detach()), labels * 0)
            if "all" in step.targets and group.old.any():
                logits = self.network.head(outputs.features[torch.from_numpy(group.old)])
                parts["old"] = F.mse_loss(logits, step.targets["all"])
        elif "all" in step.targets:
            guided = F.mse_loss(self.extra(outputs.features), step.targets["all"])
        met = getattr(self, "met", None)
        self.register_buffer("met", labels if met is None else torch.cat([met, labels]))
        return Losses(lin + guided + sum(parts.values()), parts)

    def end(self, task, memory, render):
        pixels = render(plain_keys(memory.ids))
        self.register_buffer("means", self.network(pixels).features)
        self.met = self.met[:3].clone() if task.index else None  # dropped after the first task

    def predict(self, images):
        return networks.head_logits(self.network, images)


@pytest.fixture
def restless(monkeypatch):
    monkeypatch.setitem(methods.METHODS, "restless", Restless)


@pytest.mark.parametrize("mode", ["features", "model", "none"])
def test_stopped_at_any_step_it_ends_the_same(small, make_run, monkeypatch, restless, mode):
    settings = ("method=restless", "tasks=5", f"teacher_mode={mode}", "labels=2/class", "memory=12")
    expected, _ = engine.train(make_run(small(*settings), "whole"))
    method, _, calls = trained_in_pieces(make_run(small(*settings), "stopped"), monkeypatch)
    # Each step once, each after a start of its own.
    steps = [("first", n) for n in range(3)] + [("second", n) for n in range(4)]
    assert calls == [(task, *step) for task in range(5) for step in steps]
    assert fingerprint(method.state_dict()) == fingerprint(expected.state_dict())


def test_the_same_seed_makes_the_same_modules(small, make_run, restless):
    """Whatever the global generator is at."""
    found = []
    for name in ("one", "two"):
        torch.rand(len(name) + len(found))
        scene = SecondTask(small("method=restless"), make_run, name)
        methods.begin(scene.method, 0, scene.phase, scene.task)
        found.append(fingerprint(scene.method.state_dict()))
    assert found[0] == found[1]


def test_buffers_come_back_where_the_network_is(small, make_run, restless):
    """On the meta device, which stands for any that is not the host."""
    scene = SecondTask(small("method=restless"), make_run)
    scene.method.register_buffer("means", torch.ones(3))
    saved = scene.method.state_dict()
    scene.method.register_buffer("other", torch.ones(2))
    scene.method.to("meta").load_buffers(saved)
    assert scene.method.means.device.type == "meta" and scene.method.means.shape == (3,) and scene.method.other is None


def test_labels_are_never_made_up(small, make_run):
    scene = SecondTask(small(), make_run)
    hidden = np.setdiff1d(scene.task.unlabeled, scene.task.labeled)[:3]
    with pytest.raises(Forbidden, match=f"{hidden[0]} has no label"):
        scene.setup.draws.labeled_views("weak", hidden, scene.now(0, 0))


def test_more_steps_than_a_pass_has_images_go_on_with_another_order(small, make_run):
    scene = SecondTask(small("unlabeled_batch=100"), make_run)
    steps = scene.task.steps
    seen = [scene.setup.draws.unlabeled(scene.now(0, step))[0] for step in range(2 * steps)]
    first, second = (np.concatenate(part) for part in (seen[:steps], seen[steps:]))
    assert len(np.unique(first)) == len(first) == len(np.unique(second)) == 100 * steps
    assert not np.array_equal(first, second)


def test_passes_without_counting_leave_statistics_alone(small, make_run):
    """Also in micro-batches, which count for themselves."""
    from nncsl import passes

    for micro_batch in (0, 3):
        scene = SecondTask(small("batchnorm=train"), make_run, f"run{micro_batch}")
        forward = passes.forward(scene.network, passes.Passes(micro_batch, folder=scene.run.folder))
        images = torch.randn(8, 1, 8, 8)
        before = fingerprint(scene.network.state_dict())
        with passes.statistics_untouched(scene.network):
            forward(images)
        assert fingerprint(scene.network.state_dict()) == before
        scene.network.eval()
        forward(images)
        assert fingerprint(scene.network.state_dict()) == before
        scene.network.train()
        forward(images)
        assert fingerprint(scene.network.state_dict()) != before
