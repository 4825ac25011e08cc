"""CCIC: its losses against loops over their formulas, its switches, its neighbors, and what a step shows."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import beta

from nncsl import engine, evaluation, kernels, networks, passes
from nncsl.batches import plain_keys
from nncsl.errors import ConfigError
from nncsl.featurebank import fingerprint
from nncsl.methods import mixmatch
from nncsl.teachers import Teacher
from tests.nncsl.scenes import SecondTask

SWITCHES = ("softmax_targets", "own_views", "softmax_unlabeled")


def doubles(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def softmax(row):
    powers = [math.exp(value) for value in row]
    return [value / sum(powers) for value in powers]


def naive_targets(logits, views, with_softmax, own_views):
    """By definition, or as the public code has it: rows image by image, averaged as if they stood view by view."""
    n = len(logits) // views
    rows = [softmax(row) if with_softmax else [0 if v == -math.inf else v for v in row] for row in logits.tolist()]
    image_major = [rows[view * n + image] for image in range(n) for view in range(views)]
    found = [None] * len(rows)
    for place in range(len(rows)):
        image, view = divmod(place, views)
        if own_views:
            averaged = [image_major[image * views + other] for other in range(views)]
        else:
            averaged = [image_major[block * n + place % n] for block in range(views)]
        squares = [(sum(column) / views) ** 2 for column in zip(*averaged, strict=True)]
        found[view * n + image] = [value / sum(squares) for value in squares]
    return torch.tensor(found, dtype=torch.float64)


def naive_margins(embeddings, labels, hardest, margin, attract=True):
    """Per anchor its furthest within the class, itself among them, and its nearest outside."""
    rows, found = embeddings.tolist(), []
    for a, anchor in enumerate(rows):
        away = [sum((x - y) ** 2 for x, y in zip(anchor, row, strict=True)) for row in rows]
        within = sorted((d for d, label in zip(away, labels, strict=True) if label == labels[a]), reverse=True)
        others = sorted(d for d, label in zip(away, labels, strict=True) if label != labels[a])
        for j in range(hardest):
            positive = within[j] if attract and j < len(within) else 0.0
            found.append(max(0.0, positive - others[j] + margin) if j < len(others) else 0.0)
    return sum(found) / len(found)


def naive_cross_entropy(logits, labels):
    return np.mean(
        [-math.log(softmax(row)[label]) for row, label in zip(logits.tolist(), labels.tolist(), strict=True)]
    )


@pytest.mark.parametrize("with_softmax", [False, True])
@pytest.mark.parametrize("own_views", [False, True])
@pytest.mark.parametrize(("images", "views"), [(7, 3), (2, 3), (1, 3), (6, 2), (5, 1)])
def test_targets_in_both_forms(images, views, own_views, with_softmax):
    logits = 2 * doubles(images * views, 5)
    logits[:, 3] = -math.inf  # a class that was not seen yet
    scores = mixmatch.class_scores(logits, softmax=with_softmax)
    found = mixmatch.sharpened_targets(scores, views, own_views=own_views)
    torch.testing.assert_close(found, naive_targets(logits, views, with_softmax, own_views))
    assert (found[:, 3] == 0).all() and (found.sum(dim=1) - 1).abs().max() < 1e-12


def test_a_target_of_the_public_form_mixes_images_and_holds_its_own_view():
    images, views = 8, 3
    for row in range(images * views):
        scores = torch.zeros(images * views, 2, dtype=torch.float64)
        scores[:, 0], scores[row, 1] = 1.0, 1.0  # one view says something else
        told = mixmatch.sharpened_targets(scores, views, own_views=False)[:, 1] > 0
        assert told[row] and told.sum() == views
        assert len({int(place) % images for place in told.nonzero()}) == views


def test_scores_of_no_class_make_no_target_but_no_nan_either():
    assert (mixmatch.sharpened_targets(torch.zeros(6, 4), 3, own_views=True) == 0).all()


def test_unlabeled_loss_is_divided_by_the_classes_twice():
    scores, targets = doubles(6, 4), doubles(6, 4, seed=1)
    pairs = zip(scores.flatten().tolist(), targets.flatten().tolist(), strict=True)
    expected = sum((score - target) ** 2 for score, target in pairs) / (6 * 4) / 4
    assert mixmatch.unlabeled_loss(scores, targets).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("hardest", [1, 3])
@pytest.mark.parametrize("labels", [[0, 1, 0, 1, 0, 0, 1, 0, 2, 0], [0] * 9 + [1], list(range(10)), [0, 1] * 5])
def test_triplets_pair_the_hardest(labels, hardest):
    """Also where a class has fewer images than that, or all others together have."""
    embeddings = 0.5 * doubles(10, 3)
    embeddings[4] = embeddings[1]
    found = mixmatch.margin_loss(embeddings, torch.tensor(labels), hardest, 1.0)
    assert found.item() == pytest.approx(naive_margins(embeddings, labels, hardest, 1.0), rel=1e-12) and found > 0


def test_new_and_old_are_pushed_apart_and_nothing_together():
    new, old = 0.5 * doubles(6, 3), 0.5 * doubles(4, 3, seed=1)
    everything, sides = torch.cat([new, old]), [0] * 6 + [1] * 4
    expected = naive_margins(everything, sides, 3, 1.0, attract=False)
    assert mixmatch.contrast_loss(new, old, 3, 1.0).item() == pytest.approx(expected, rel=1e-12) and expected > 0
    assert mixmatch.contrast_loss(new, old + 10, 3, 1.0) == 0  # further apart than the margin


def test_a_batch_of_one_class_has_no_triplet():
    embeddings = doubles(8, 3).requires_grad_()
    loss = mixmatch.margin_loss(embeddings, torch.zeros(8), 3, 1.0)
    loss.backward()
    assert loss == 0 and (embeddings.grad == 0).all()


def test_equal_embeddings_have_finite_gradients():
    embeddings = torch.ones(6, 3, requires_grad=True)
    mixmatch.margin_loss(embeddings, torch.arange(6) % 2, 3, 1.0).backward()
    assert embeddings.grad.isfinite().all()


@pytest.mark.parametrize("alpha", [0.75, 1.0])
def test_the_first_image_dominates(alpha):
    weights = mixmatch.mixing_weights(20_000, alpha, torch.Generator().manual_seed(0))
    assert (weights >= 0.5).all() and (weights <= 1).all()
    for at in (0.55, 0.7, 0.9):  # the distribution of max(l, 1 - l)
        assert (weights <= at).double().mean() == pytest.approx(beta.cdf(at, alpha, alpha) * 2 - 1, abs=0.015)


def test_mixup_pairs_each_image_with_one_of_a_shuffle():
    images = doubles(9, 2, 3, 3)
    mixed = mixmatch.mixup(images, 0.75, torch.Generator().manual_seed(3))
    generator = torch.Generator().manual_seed(3)
    partners = torch.randperm(9, generator=generator).tolist()
    weights = mixmatch.mixing_weights(9, 0.75, generator).tolist()
    for i, (partner, weight) in enumerate(zip(partners, weights, strict=True)):
        torch.testing.assert_close(mixed[i], weight * images[i] + (1 - weight) * images[partner])


def naive_answer(query, memory, labels, classes, k):
    """A vote each, minus 1e-5 of the squared distance to the nearest image of the class."""
    away = ((memory - query) ** 2).sum(dim=1).tolist()
    nearest = sorted(range(len(away)), key=lambda row: away[row])[:k]
    scores = {}
    for c in classes:
        counted = sum(labels[row] == c for row in nearest)
        scores[c] = counted - 1e-5 * min(d for d, label in zip(away, labels, strict=True) if label == c)
    return max(scores, key=lambda c: scores[c])


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_the_nearest_vote_and_distance_breaks_ties(k):
    memory = torch.nn.functional.normalize(doubles(30, 4), dim=1)
    queries = torch.nn.functional.normalize(doubles(200, 4, seed=1), dim=1)
    labels = torch.arange(30) % 5
    _, nearest = kernels.neighbors(queries, memory, k)
    # Scores are compared in fp32, where 1e-5 of a distance beside a vote would be lost.
    found = mixmatch.votes(labels[nearest], 6).float().argmax(dim=1).tolist()
    assert found == [naive_answer(query, memory, labels.tolist(), range(5), k) for query in queries]
    if k == 2:
        assert found == labels[nearest[:, 0]].tolist()


class Scene(SecondTask):
    """Task 2 of digits, in fp64, so that formulas can be compared."""

    def __init__(self, loaded, make_run, name="run"):
        super().__init__(loaded, make_run, name)
        self.method.double()

    @property
    def steps(self):
        return self.phase.epochs * self.phase.steps

    def step(self, number, forward=None):
        setup = self.setup._replace(render=lambda keys: self.setup.render(keys).double())
        now = self.now(*divmod(number, self.phase.steps))
        return engine.look(self.method, setup, self.phase, now, Teacher(), forward or self.network)

    def features(self, pixels):
        with torch.no_grad(), passes.statistics_untouched(self.network):
            return self.network(pixels).features

    def logits(self, pixels):
        with torch.no_grad():
            return self.method.seen_logits(self.features(pixels), self.task)


def settings(*more):
    return ("method=ccic", "tasks=5", "own.lr=1e-3", *more)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("repaired", [False, True])
def test_a_step_minimizes_what_is_specified(small, make_run, repaired, late):
    chosen = [f"own.{name}={str(repaired).lower()}" for name in SWITCHES]
    scene = Scene(small(*settings(*chosen, "own.unlabeled_batch=10", "epochs=5")), make_run)
    step = scene.step(scene.steps - 1 if late else 0)
    labels, pixels = step.labels("labeled"), step.pixels
    with networks.evaluating(scene.method):
        targets = naive_targets(scene.logits(pixels["unlabeled"]), 3, repaired, repaired)
    everything = torch.cat([pixels["labeled"], pixels["unlabeled"]])
    mixed = mixmatch.mixup(everything, 0.75, step.generator("mixup"))
    logits = scene.logits(mixed[: len(labels)])
    expected = {  # 4 labels of each of 2 classes, and as many that are remembered
        "stream": naive_cross_entropy(logits[:8], labels[:8]),
        "memory": naive_cross_entropy(logits[8:], labels[8:]),
    }
    scores = scene.logits(mixed[len(labels) :])
    scores = scores.softmax(dim=1) if repaired else scores.masked_fill(scores == -math.inf, 0)
    expected["unlabeled"] = ((scores - targets) ** 2).sum().item() / (30 * 10 * 10)
    metric = pixels["labeled"] if late else mixmatch.mixup(pixels["labeled"], 1.0, step.generator("triplet"))
    expected["triplet"] = naive_margins(scene.features(metric), labels.tolist(), 3, 1.0)
    if not late:
        both = scene.features(torch.cat([pixels["new"], pixels["old"]]))
        expected["contrast"] = naive_margins(both, [0] * 32 + [1] * 8, 3, 1.0, attract=False)

    losses = scene.method.losses(step)
    found = {name: part.item() for name, part in losses.parts.items()}
    assert found == pytest.approx(expected, rel=1e-6)
    weights = {"stream": 1, "memory": 0.7, "unlabeled": 0.75, "triplet": 1, "contrast": 0.5}
    assert losses.total.item() == pytest.approx(sum(weights[name] * part for name, part in expected.items()), rel=1e-6)
    assert torch.equal(losses.guesses["unlabeled"], targets.argmax(dim=1))


def test_each_switch_changes_what_it_says(small, make_run):
    scene = Scene(small(*settings()), make_run)
    before = {name: value.clone() for name, value in scene.method.state_dict().items()}

    def parts(**changes):
        scene.method.load_state_dict(before)
        scene.method.own = type(plain)(**{**vars(plain), **changes})
        return {name: part.item() for name, part in scene.method.losses(scene.step(0)).parts.items()}

    plain = scene.method.own
    usual = parts()
    for name in SWITCHES:
        changed = parts(**{name: True})
        assert {part for part in usual if usual[part] != changed[part]} == {"unlabeled"}


def test_the_stream_counts_where_unlabeled_images_hold_a_label(small, make_run):
    scene = Scene(small(*settings("own.stream_every_step=false", "own.unlabeled_batch=16")), make_run)
    counted = []
    for number in range(6):
        step = scene.step(number)
        shown = np.isin(step.batch["unlabeled"].keys.ids, scene.task.labeled).any()
        parts = scene.method.losses(step).parts
        assert ("stream" in parts) == shown and "memory" in parts
        counted.append(bool(shown))
    assert set(counted) == {True, False}


def test_what_a_step_shows(small, make_run):
    """Labeled images twice in one view, other views where old meets new; the latter not in the last steps."""
    scene = Scene(small(*settings("labels=6/class", "memory=60", "epochs=10", "labeled_batch=10")), make_run)
    step = scene.step(3)
    batch, pixels = step.batch, step.pixels
    sizes = {"labeled": 20, "unlabeled": 96, "metric": 20, "new": 10, "old": 10}
    assert {name: len(group) for name, group in batch.items()} == sizes
    assert {group.keys.kind for group in batch.values()} == {"weak"}
    assert batch["labeled"].old.tolist() == [False] * 10 + [True] * 10
    assert torch.equal(pixels["labeled"], pixels["metric"])
    assert set(batch["unlabeled"].keys.ids) | set(batch["new"].keys.ids) <= set(scene.task.unlabeled)
    assert set(batch["old"].keys.ids) <= set(scene.state.memory.ids)
    assert set(batch["labeled"].labels[:10].tolist()) <= set(scene.task.classes)
    assert set(batch["labeled"].labels[10:].tolist()) <= set(scene.task.old)
    addresses = [
        (id, slot)
        for name in ("labeled", "new", "old")
        for id, slot in zip(batch[name].keys.ids, batch[name].keys.slots, strict=True)
    ]
    assert len(set(addresses)) == len(addresses)
    for number in range(scene.steps):
        drawn = scene.method.draw(scene.setup.draws, scene.now(*divmod(number, scene.phase.steps)))
        assert ("old" in drawn) == ("new" in drawn) == (number < 0.9 * scene.steps)


def test_guessing_leaves_statistics_modes_and_gradients_alone(small, make_run):
    scene = Scene(small(*settings()), make_run)
    before, modes = fingerprint(scene.network.state_dict()), [m.training for m in scene.network.modules()]
    targets = scene.method._targets(scene.step(0))
    assert not targets.requires_grad and targets.shape == (96, 10)
    assert fingerprint(scene.network.state_dict()) == before
    assert [m.training for m in scene.network.modules()] == modes and all(modes)


def test_micro_batches_change_nothing(small, make_run):
    found = []
    for size in (0, 5):
        scene = Scene(small(*settings()), make_run, f"run{size}")
        forward = passes.forward(scene.network, passes.Passes(size, folder=scene.run.folder))
        losses = scene.method.losses(scene.step(0, forward))
        losses.total.backward()
        gradients = torch.cat([p.grad.flatten() for p in scene.network.parameters() if p.grad is not None])
        found.append((torch.stack([losses.total, *losses.parts.values()]), gradients))
    for whole, parts in zip(*found, strict=True):
        torch.testing.assert_close(parts, whole, rtol=1e-6, atol=1e-9)


def test_memory_images_are_their_own_nearest_and_predict_their_class(small, make_run):
    scene = SecondTask(small(*settings()), make_run)
    memory, method, render = scene.state.memory, scene.method, scene.setup.render
    images = render(plain_keys(memory.ids))
    with networks.evaluating(method):
        assert (method.predict(images) == -math.inf).all()  # before there is a memory
        method.end(scene.task, memory, render)
        torch.testing.assert_close(method.features.norm(dim=1), torch.ones(len(memory.ids)))
        assert kernels.neighbors(method.features, method.features, 1)[1].flatten().tolist() == list(range(len(images)))
        scores = method.predict(images)
        queries = render(plain_keys(scene.task.unlabeled[:100]))
        by_count = []
        for count in (1, 2):
            method.own = type(method.own)(**{**vars(method.own), "neighbors": count})
            by_count.append(method.predict(queries).argmax(dim=1))
    assert scores.argmax(dim=1).tolist() == memory.labels.tolist()
    known = np.isin(np.arange(10), memory.labels)
    assert (scores.isfinite().numpy() == known).all()
    assert torch.equal(*by_count)


def test_few_labels_a_first_task_without_memory_and_no_forward_transfer(small, make_run):
    run = make_run(small(*settings("labels=1/class", "memory=10", "epochs=1", "unlabeled_batch=100")))
    method, state = engine.train(run)
    assert sorted(method.labels.tolist()) == list(range(10)) and method.features.shape == (10, 32)
    assert state.ahead == [None] * 4
    scores, labels = evaluation.test_scores(method, run.source, run.config.views, run.device)
    assert evaluation.accuracy_by_task(scores, labels, run.tasks, None) == state.accuracy_matrix[-1]


@pytest.mark.parametrize("setting", ["own.views=0", "own.mixup=0", "own.neighbors=-1", "memory=0"])
def test_settings_that_make_no_sense_are_refused(small, make_run, setting):
    name, value = setting.removeprefix("own.").split("=")
    with pytest.raises(ConfigError, match=f"{name}={value}"):
        SecondTask(small(*settings(setting)), make_run)
