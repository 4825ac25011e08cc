"""DER++ by its formulas, and its store of logits: taken at a task's end, then kept as it is."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from nncsl import config, engine, methods, networks, passes
from nncsl.batches import Moment
from nncsl.data.tasks import Stream
from nncsl.methods.derpp import DERpp
from nncsl.replay import Memory
from nncsl.teachers import Teacher
from tests.nncsl.scenes import SecondTask


def naive_cross_entropy(rows, labels, classes):
    """The mean of -log softmax over some classes."""
    each = [
        math.log(sum(math.exp(row[c]) for c in classes)) - row[label]
        for row, label in zip(rows.tolist(), labels.tolist(), strict=True)
    ]
    return sum(each) / len(each)


def test_a_step_by_its_formula(small, make_run):
    """In fp64 (cross-entropies in fp32), from three passes."""
    scene = SecondTask(small("method=derpp", "labels=6/class", "labeled_batch=8"), make_run)
    method = scene.method.double()
    with networks.evaluating(method):
        method.end(scene.run.tasks[0], scene.state.memory, lambda keys: scene.setup.render(keys).double())
    stored = dict(zip(method.stored_ids.tolist(), method.stored_logits.clone(), strict=True))
    method.stored_logits += 1  # so that both are apart
    method.mode(scene.phase, scene.task)
    batch, seen = method.draw(scene.setup.draws, scene.now(0, 0)), []

    def watched(images):
        outputs = method.network(images)
        seen.append(method.network.head(outputs.features).detach())
        return outputs

    losses = scene.losses(method, Teacher(), forward=watched)
    stream, first, second = seen
    a, b = (batch[name].keys for name in ("logit_replay", "label_replay"))
    assert [len(rows) for rows in seen] == [8, 8, 8] and a.ids.tolist() != b.ids.tolist()
    for image in np.intersect1d(a.ids, b.ids):  # another view in each batch
        assert a.slots[a.ids == image] != b.slots[b.ids == image]
    squares = [((first[i] - stored[image] - 1) ** 2).mean().item() for i, image in enumerate(a.ids.tolist())]
    expected = {
        "lin": naive_cross_entropy(stream, batch["labeled"].labels, range(4)),
        "replay": naive_cross_entropy(second, batch["label_replay"].labels, range(4)),
        "logits": sum(squares) / 8,
    }
    assert {name: part.item() for name, part in losses.parts.items()} == pytest.approx(expected, rel=1e-6)
    total = expected["lin"] + 0.2 * expected["logits"] + 0.5 * expected["replay"]
    assert losses.total.item() == pytest.approx(total, rel=1e-6)


def test_logits_are_taken_once_and_leave_with_their_image(small, make_run, monkeypatch):
    stores, end = [], DERpp.end

    def watched(self, task, memory, render):
        end(self, task, memory, render)
        assert sorted(self.stored_ids.tolist()) == sorted(memory.ids.tolist())
        stores.append(dict(zip(self.stored_ids.tolist(), self.stored_logits.clone(), strict=True)))

    monkeypatch.setattr(DERpp, "end", watched)
    engine.train(make_run(small("method=derpp", "memory=12", "epochs=1")))
    assert [len(store) for store in stores] == [8, 12, 12, 12, 12]
    stayed = [before.keys() & after.keys() for before, after in pairwise(stores)]
    assert list(map(len, stayed)) == [6, 8, 10, 10]
    for images, (before, after) in zip(stayed, pairwise(stores), strict=True):
        assert all(torch.equal(before[image], after[image]) for image in images)


def test_without_a_memory_it_is_finetuning(small, make_run):
    """Also in the first task: nothing is stored yet."""
    found = {}
    for name in ("derpp", "finetune"):
        run = make_run(small(f"method={name}", "own.lr=0.1"), name)
        method = methods.build(run.config, 10)
        setup = engine.set_up(run, Stream(run.source, run.tasks), Memory(), 0)
        phase = method.phases(setup.task)[0]
        losses = method.losses(engine.look(method, setup, phase, Moment(0, 0, 0, 0), Teacher(), method.network))
        losses.total.backward()
        found[name] = losses.total.detach(), method.network.head.weight.grad
    torch.testing.assert_close(found["derpp"], found["finetune"])


def test_many_images_are_taken_in_parts_of_mixed_classes(small, make_run, monkeypatch):
    """Each part in train mode, by its own statistics, which are not counted."""
    scene = SecondTask(small("method=derpp", "labels=9/class"), make_run)
    method, memory, sizes = scene.method, scene.state.memory, []
    monkeypatch.setattr(passes, "inference_batch", lambda network, size: 7)
    kept = {name: value.clone() for name, value in method.network.state_dict().items()}

    def render(keys):
        assert all(module.training for module in method.network.modules())
        sizes.append(len(keys))
        assert len(np.unique(memory.labels[np.isin(memory.ids, keys.ids)])) == 2
        return scene.setup.render(keys)

    with networks.evaluating(method):
        found = method.logits_of_images(memory.ids, render)
    assert sizes == [6, 6, 6] and found.abs().sum(dim=1).min() > 0  # none of a single image, which has no variance
    assert all(torch.equal(kept[name], value) for name, value in method.network.state_dict().items())


def test_its_settings():
    own = config.load("digits", [{"method": "derpp"}]).own
    assert (own["alpha"], own["beta"], own["lr"], own["milestones"]) == (0.2, 0.5, 0.03, [])
    assert config.load("cifar100", [{"method": "derpp"}]).own["alpha"] == 0.3
