"""X-DER by its formulas: every term of a step against loops over numbers, its store, and which passes are counted."""

import math
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from nncsl import config, engine, methods, networks, planner
from nncsl.batches import Moment, ViewKeys
from nncsl.data.tasks import Stream
from nncsl.errors import ConfigError
from nncsl.featurebank import fingerprint
from nncsl.methods.xder import XDER
from nncsl.planner import imagined
from nncsl.replay import Memory
from nncsl.teachers import Teacher
from tests.nncsl.methods.test_derpp import naive_cross_entropy
from tests.nncsl.methods.test_slices import naive_contrast, naive_distance, naive_mean_of_positive
from tests.nncsl.scenes import SecondTask, trained_in_pieces

BATCHNORM = torch.nn.modules.batchnorm._BatchNorm


@pytest.fixture
def scene(small, make_run):
    """A function from settings to the second task, the first one's logits in the store, as positive as trained ones."""

    def make(*settings, name="run"):
        scene = SecondTask(small("method=xder", *settings), make_run, name)
        method, memory = scene.method, scene.state.memory
        with torch.no_grad():
            scene.network.head.bias += 3
            scene.network.head.weight *= 3
        with networks.evaluating(method):
            method.end(scene.run.tasks[0], memory, scene.setup.render)
        method.mode(scene.phase, scene.task)
        return scene

    return make


class Watched:
    """A network's pass that remembers what it was given and what it gave."""

    def __init__(self, network):
        self.network, self.images, self.outputs = network, [], []

    def __call__(self, images):
        self.images.append(images)
        self.outputs.append(self.network(images))
        return self.outputs[-1]

    def logits(self):
        return [self.network.head(outputs.features).detach() for outputs in self.outputs]


def statistics(network):
    norms = [module for module in network.modules() if isinstance(module, BATCHNORM)]
    return torch.cat([torch.cat([norm.running_mean, norm.running_var]) for norm in norms]).clone()


def gradients(method, total):
    method.zero_grad(set_to_none=True)
    total.backward()
    return {name: p.grad for name, p in method.named_parameters() if p.grad is not None and p.grad.any()}


def test_a_step_by_its_formulas(scene):
    """In fp64, with every term switched on; cross-entropies are computed in fp32."""
    own = ("own.distance_weight=30", "own.past_constraint=true", "own.contrast_batch=5", "own.margin=2")
    second = scene(*own, "labels=6/class", "labeled_batch=8", "class_order=[3,1,4,0,5,9,2,6,8,7]")
    past, present, future = [3, 1], [4, 0], [[5, 9], [2, 6], [8, 7]]
    ahead = [c for part in future for c in part]
    method, memory = second.method.double(), second.state.memory
    label_of = dict(zip(memory.ids.tolist(), memory.labels.tolist(), strict=True))
    before = dict(zip(method.stored_ids.tolist(), method.stored_logits.clone(), strict=True))
    batch = method.draw(second.setup.draws, second.now(0, 0))
    watched = Watched(method.network)
    losses = second.losses(method, Teacher(), forward=watched)
    after = dict(zip(method.stored_ids.tolist(), method.stored_logits, strict=True))

    # Four passes: the stream; memory batch A, and all of the stream as there is one past task; B; strong views.
    assert [len(images) for images in watched.images] == [8, 8 + 8, 8, 4 * (8 + 5)]
    assert torch.equal(watched.images[1][8:], watched.images[0])
    stream, first, second_batch, strong = watched.logits()
    labels = {name: group.labels for name, group in batch.items()}
    a, b = (batch[name].keys.ids.tolist() for name in ("logit_replay", "label_replay"))
    met = dict(zip(b, second_batch, strict=True)) | dict(zip(a, first, strict=False))  # what is in both: as in A
    assert len(met) < 16

    expected = {"lin": naive_cross_entropy(stream, labels["labeled"], present)}
    expected["replay"] = naive_cross_entropy(second_batch, labels["label_replay"], past)
    differences = [(first[i, c] - before[image][c]).item() ** 2 for i, image in enumerate(a) for c in range(10)]
    expected["logits"] = sum(differences) / len(differences)
    by_slice = [strong[:, part].tolist() for part in future]
    expected["contrast"] = np.mean([naive_contrast(v, labels["contrast"].tolist(), 5.0) for v in by_slice])
    remembered = [after[image].detach() for image in batch["contrast"].keys.ids[8:13].tolist()]
    expected["distance"] = np.mean(
        [
            naive_distance(vectors[13 * view + 8 : 13 * view + 13], [row[part].tolist() for row in remembered])
            for part, vectors in zip(future, by_slice, strict=True)
            for view in range(4)
        ]
    )
    rows = [(row, present) for row in stream] + [(row, past) for row in met.values()]
    excess = [(row[ahead].max() + 2 - row[part].max()).item() for row, part in rows]
    expected["future"] = naive_mean_of_positive(excess)
    p = [row[past + present].softmax(dim=0).tolist() for row in stream]
    expected["past"] = naive_mean_of_positive([max(row[:2]) + 2 - max(row[2:]) for row in p])
    assert {name: part.item() for name, part in losses.parts.items()} == pytest.approx(expected, rel=1e-6)
    assert min(expected.values()) > 0
    weights = {"lin": 1, "logits": 0.3, "replay": 0.8, "contrast": 0.05, "distance": 30, "future": 0.1, "past": 0.1}
    assert losses.total.item() == pytest.approx(sum(weights[k] * v for k, v in expected.items()), rel=1e-6)

    # The store after it: images that were met have new outputs in present and future slices.
    later = present + ahead
    for image, row in met.items():
        own, largest = before[image][label_of[image]].item(), row[later].max().item()
        factor = 0.85 * own / largest if 0 < own < largest else 1.0
        torch.testing.assert_close(after[image][later], row[later] * factor, rtol=1e-12, atol=1e-12)
        assert torch.equal(after[image][past], before[image][past])
    others = set(before) - set(met)
    assert all(torch.equal(after[image], before[image]) for image in others)
    assert method.counters.tolist() == [int(image in met) for image in method.stored_ids.tolist()]


def test_without_extra_weights_it_is_cross_entropy_on_the_present_slice(scene):
    zero = [f"own.{name}=0" for name in ("alpha", "beta", "contrast_weight", "constraint_weight")]
    second = scene(*zero)
    assert "contrast" not in second.method.draw(second.setup.draws, second.now(0, 0))
    other = deepcopy(second.method)
    losses = second.losses(second.method, Teacher())
    group = other.draw(second.setup.draws, second.now(0, 0))["labeled"]
    logits = other.network.head(other.network(second.setup.render(group.keys)).features)
    expected = F.cross_entropy(logits[:, [2, 3]], group.labels - 2)
    assert losses.total.item() == pytest.approx(expected.item(), rel=1e-6)
    found, known = gradients(second.method, losses.total), gradients(other, expected)
    assert found.keys() == known.keys() and len(known) > 5
    for name in known:
        torch.testing.assert_close(found[name], known[name], rtol=1e-4, atol=1e-6)


def test_running_statistics_count_the_pass_of_the_first_memory_batch_alone(scene):
    second = scene("labeled_batch=6")
    alone, method = deepcopy(second.method), second.method
    batch = method.draw(second.setup.draws, second.now(0, 0))
    losses = second.losses(method, Teacher())
    losses.total.backward()
    pixels = [second.setup.render(batch[name].keys) for name in ("logit_replay", "labeled")]
    before = statistics(alone.network)
    alone.network(torch.cat(pixels))
    assert torch.equal(statistics(method.network), statistics(alone.network))
    assert not torch.equal(statistics(method.network), before)

    # In the third task half of the stream's images come along.
    watched = Watched(method.network)
    third = replace(second.task, index=2)
    seen = engine.look(method, second.setup._replace(task=third), second.phase, second.now(0, 0), Teacher(), watched)
    method.losses(seen)
    assert [len(images) for images in watched.images[:3]] == [6, 6 + 3, 6]


def test_in_the_first_task_the_stream_is_counted_and_strong_views_are_not(small, make_run):
    run = make_run(small("method=xder"))
    method = methods.build(run.config, 10).train()
    setup = engine.set_up(run, Stream(run.source, run.tasks), Memory(), 0)
    alone, phase = deepcopy(method), method.phases(setup.task)[0]
    now = Moment(0, 0, 0, 0)
    losses = method.losses(engine.look(method, setup, phase, now, Teacher(), method.network))
    assert set(losses.parts) == {"lin", "contrast", "future"}
    alone.network(setup.render(method.draw(setup.draws, now)["labeled"].keys))
    assert torch.equal(statistics(method.network), statistics(alone.network))


def test_an_image_is_renewed_with_the_probability_of_one_over_its_meetings(scene):
    second = scene("labeled_batch=4", "own.contrast_weight=0")
    method, renewed = second.method, []
    renew = method.renew

    def counting(rows, *others):
        renewed.append(set(rows[others[-1]].tolist()))  # the last says which of them
        renew(rows, *others)

    method.renew = counting
    met = dict.fromkeys(range(len(method.stored_ids)), 0)
    chances, hits = 0.0, 0
    for step in range(60):
        batch = method.draw(second.setup.draws, second.now(0, step))
        ids = np.union1d(batch["logit_replay"].keys.ids, batch["label_replay"].keys.ids)
        with torch.no_grad():
            second.losses(method, Teacher(), step=step)
        rows = set(method.rows(ids).tolist())
        assert renewed[-1] <= rows
        for row in rows:
            met[row] += 1
            assert met[row] > 1 or row in renewed[-1]  # the first time always
            chances += 1 / met[row]
            hits += row in renewed[-1]
    assert method.counters.tolist() == list(met.values())
    assert abs(hits - chances) < 3 * math.sqrt(chances)


def test_the_end_of_a_task_takes_in_new_logits_and_renews_old_ones(small, make_run, monkeypatch):
    run = make_run(small("method=xder", "labels=6/class", "memory=20"))
    ends, end = {}, XDER.end

    def watched(self, task, memory, render):
        before = dict(zip(self.stored_ids.tolist(), self.stored_logits.clone(), strict=True))
        counted = statistics(self.network)
        end(self, task, memory, render)
        assert torch.equal(statistics(self.network), counted) and not self.counters.any()
        assert not any(module.training for module in self.network.modules())
        after = dict(zip(self.stored_ids.tolist(), self.stored_logits.clone(), strict=True))
        old = np.isin(memory.labels, task.old)
        raw = {} if task.index == 0 else raw_logits(self, memory.ids[old], render)
        ends[task.index] = before, after, raw | raw_logits(self, memory.ids[~old], render), memory

    monkeypatch.setattr(XDER, "end", watched)
    engine.train(run)
    assert all(set(after) == set(memory.ids.tolist()) for _, after, _, memory in ends.values())
    _, after, raw, _ = ends[0]
    assert len(after) == 12
    for image in after:
        torch.testing.assert_close(after[image], raw[image])

    # In the second task 12 were there, and 5 of each class stay: the first ones of each.
    before, after, raw, memory = ends[1]
    kept = [ends[0][3].ids[ends[0][3].labels == c][:5] for c in (0, 1)]
    assert set(before) & set(after) == set(np.concatenate(kept).tolist()) and len(after) == 20
    scaled = 0
    for image, label in zip(memory.ids.tolist(), memory.labels.tolist(), strict=True):
        if label < 2:  # an old image: present and future slices are new
            expected, part = torch.cat([before[image][:2], raw[image][2:]]), slice(2, None)
        else:  # a new one: past slices are kept under its label's logit
            expected, part = raw[image].clone(), slice(0, 2)
        own, largest = expected[label].item(), expected[part].max().item()
        if 0 < own < largest:
            expected[part] *= 0.85 * own / largest
            scaled += 1
        torch.testing.assert_close(after[image], expected)
    assert 0 < scaled < 20


def raw_logits(method, ids, render):
    """By image, from one batch of all of them: fewer than a pass has."""
    network = deepcopy(method.network).train()
    pixels = render(ViewKeys("weak", ids, np.zeros(len(ids), np.int64)))
    with torch.no_grad():
        return dict(zip(ids.tolist(), network.head(network(pixels).features), strict=True))


def test_past_slices_of_stored_logits_never_change(small, make_run, monkeypatch):
    run = make_run(small("method=xder", "own.contrast_views=2"))
    stores, end = [], XDER.end

    def watched(self, task, memory, render):
        end(self, task, memory, render)
        stores.append(dict(zip(self.stored_ids.tolist(), self.stored_logits.clone(), strict=True)))

    monkeypatch.setattr(XDER, "end", watched)
    method, _ = engine.train(run)
    assert len(stores) == 5 and [len(store) for store in stores] == [8, 16, 24, 32, 40]
    for index, store in enumerate(stores[:-1]):
        past = 2 * (index + 1)
        for image, logits in store.items():
            assert torch.equal(stores[index + 1][image][:past], logits[:past])
            assert not torch.equal(stores[index + 1][image][past:], logits[past:])
    assert method.stored_logits.shape == (40, 10)


@pytest.mark.parametrize("settings", [("tasks=1",), ("tasks=2",), ("tasks=10", "labels=6/class"), ("memory=0",)])
def test_the_last_task_has_no_future_and_the_first_no_past(small, make_run, monkeypatch, settings):
    run = make_run(small("method=xder", "epochs=1", "own.past_constraint=true", "own.distance_weight=10", *settings))
    seen = {}

    class Watching(XDER):
        def losses(self, step):
            found = super().losses(step)
            seen.setdefault(step.task.index, set()).update(found.parts)
            return found

    monkeypatch.setitem(methods.METHODS, "xder", Watching)
    engine.train(run)
    last = len(run.tasks) - 1
    replayed = {"logits", "replay", "distance"} if run.config.memory else set()
    for index, parts in seen.items():
        expected = {"lin"} | ({"past"} | replayed if index else set())
        expected |= {"contrast", "future"} if index < last else set()
        assert parts == expected - ({"distance"} if index == last else set())
    assert sorted(seen) == list(range(last + 1))


@pytest.mark.parametrize("method", ["xder", "derpp", "er-ace"])
def test_stopped_at_any_step_it_ends_the_same(small, make_run, monkeypatch, method):
    settings = (f"method={method}", "epochs=1", "unlabeled_batch=100", "memory=24", "own.lr=0.02")
    settings += ("own.contrast_views=2", "own.distance_weight=10") if method == "xder" else ()
    expected, _ = engine.train(make_run(small(*settings), "whole"))
    found, _, calls = trained_in_pieces(make_run(small(*settings), "stopped"), monkeypatch)
    assert len(calls) == len(set(calls)) >= 10
    assert fingerprint(found.state_dict()) == fingerprint(expected.state_dict())


def test_the_planner_knows_its_largest_steps(small, make_run):
    """Those of tasks with a past and a future; and a network of one output, which it rehearses with, can be made."""
    loaded = small("method=xder", "labels=6/class", "labeled_batch=8", "memory=20")
    run = make_run(loaded)
    sizes = planner.measured_sizes(run.source, run.tasks)
    load = imagined.load(methods.build(loaded, 10), sizes, first=False)
    assert load.large == 3 * 8 + 4 * (8 + 20)
    assert methods.build(loaded, num_classes=1).slices.shape == (1, 1)


def test_its_settings():
    loaded = config.load("digits", [{"method": "xder"}])
    assert loaded.batchnorm == "train" and loaded.labeled_batch == 32
    assert (loaded.own["alpha"], loaded.own["beta"], loaded.own["lr"]) == (0.3, 0.8, 0.03)
    assert loaded.own["distance_weight"] == 0 and loaded.own["milestones"] == []
    large = config.load("cifar100", [{"method": "xder"}]).own
    assert (large["distance_weight"], large["milestones"], large["milestone_factor"]) == (3000, [0.7, 0.9], 0.2)
    with pytest.raises(ConfigError, match="contrast_views=1: expected 2 or more"):
        config.load("digits", [{"method": "xder", "own": {"contrast_views": 1}}])
