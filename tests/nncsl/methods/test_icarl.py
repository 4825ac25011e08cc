"""iCaRL by its definition: targets of the old network, herding, nearest means."""

import copy
import math

import numpy as np
import pytest
import torch

from nncsl import config, engine, replay
from nncsl.batches import plain_keys
from nncsl.config import build
from nncsl.errors import ConfigError
from nncsl.methods import icarl
from nncsl.replay import Memory
from tests.nncsl.scenes import SecondTask


def look(scene, method, teacher, step=0, pool=None):
    """What the losses of a step are computed from, in the method's precision."""
    dtype = next(method.parameters()).dtype
    setup = scene.setup._replace(render=lambda keys: scene.setup.render(keys).to(dtype))
    return engine.look(method, setup, scene.phase, scene.now(0, step, pool), teacher, method.network)


def naive_loss(logits, targets):
    """Mean over images and outputs of -t log s(z) - (1 - t) log(1 - s(z)), one by one."""
    total = 0.0
    for row, wanted in zip(logits.tolist(), targets.tolist(), strict=True):
        for z, t in zip(row, wanted, strict=True):
            s = 1 / (1 + math.exp(-z))
            total -= t * math.log(s) + (1 - t) * math.log(1 - s)
    return total / logits.numel()


@pytest.mark.parametrize("mode", ["model", "none"])
def test_the_loss_of_a_step_by_hand(small, make_run, mode):
    """Old columns: the old network's sigmoids of the same view, in eval mode; without a teacher the labels."""
    scene = SecondTask(small("method=icarl", "class_order=[3,8,1,0,2,4,5,6,7,9]", "labeled_batch=12"), make_run)
    method = copy.deepcopy(scene.method.double())
    teacher = scene.teacher(mode)
    seen = look(scene, method, teacher)
    pixels, labels = seen.pixels["labeled"], seen.labels("labeled").tolist()
    with torch.no_grad():
        old = scene.network.eval()
        said = old.head(old(pixels).features).sigmoid()
        network = copy.deepcopy(method.network)
        logits = network.head(network(pixels).features)
    targets = torch.zeros(12, 10, dtype=torch.float64)
    for row, label in enumerate(labels):
        targets[row, label] = 1
        if mode == "model":
            targets[row, [3, 8]] = said[row, [3, 8]]
    assert {*labels} & {3, 8} and {*labels} & {1, 0}  # images of both tasks
    found = method.losses(seen)
    assert found.total.dtype == torch.float64
    assert found.total.item() == found.parts["bce"].item() == pytest.approx(naive_loss(logits, targets), rel=1e-6)


def test_old_labels_are_not_used_where_there_are_answers():
    logits, answers = torch.randn(6, 5, generator=torch.Generator().manual_seed(0)), torch.rand(6, 2)
    losses = [
        icarl.binary_loss(logits, torch.tensor(labels), (4, 1), answers).item()
        for labels in ([4, 1, 0, 2, 3, 0], [1, 4, 0, 2, 3, 0], [4, 1, 0, 2, 0, 0])
    ]
    assert losses[0] == losses[1] != losses[2]


def test_bank_and_copied_network_train_alike(small, make_run):
    scene = SecondTask(small("method=icarl", "bank_codec=fp32"), make_run)
    teachers = scene.teacher("features"), scene.teacher("model")
    pool = teachers[0].pool(0)
    assert pool.sizes == {"weak": 32}
    assert np.array_equal(np.sort(pool.images["weak"]), np.unique([*scene.task.labeled, *scene.state.memory.ids]))
    for step in range(3):
        found = []
        for teacher in teachers:
            method = copy.deepcopy(scene.method)
            loss = method.losses(look(scene, method, teacher, step, pool)).total
            loss.backward()
            gradient = torch.cat([p.grad.flatten() for p in method.parameters() if p.grad is not None])
            found.append((loss.item(), gradient))
        assert found[0][0] == pytest.approx(found[1][0], rel=1e-6)
        assert (found[0][1] - found[1][1]).norm() < 1e-5 * found[1][1].norm()
        assert found[1][1].norm() > 1e-4  # BatchNorm trains, the old network's does not: no minimum to start from
    teachers[0].close()


def test_an_update_follows_the_loss_with_its_penalty(small, make_run):
    """1e-5 times the sum of all squared parameters is a weight decay of 2e-5."""
    scene = SecondTask(small("method=icarl", "own.lr=1000"), make_run)
    method = scene.method.double()
    (optimizer,) = method.begin(scene.phase, scene.task)
    reference, teacher = copy.deepcopy(method), scene.teacher("none")
    parameters = {k: p for k, p in reference.named_parameters() if "projector" not in k}
    penalty = 1e-5 * sum(p.square().sum() for p in parameters.values())
    loss = reference.losses(look(scene, reference, teacher)).total + penalty
    gradients = torch.autograd.grad(loss, list(parameters.values()))
    method.losses(look(scene, method, teacher)).total.backward()
    optimizer.step()
    updated = dict(method.named_parameters())
    for (name, before), gradient in zip(parameters.items(), gradients, strict=True):
        assert torch.allclose(updated[name], before - 1000 * gradient, rtol=1e-9, atol=1e-9)


def test_a_batch_is_drawn_from_task_and_memory_as_one_set(small, make_run):
    scene = SecondTask(small("method=icarl", "labeled_batch=10"), make_run)
    both = {*scene.task.labeled.tolist(), *scene.state.memory.ids.tolist()}
    old = []
    for step in range(40):
        group = scene.method.draw(scene.setup.draws, scene.now(0, step))["labeled"]
        assert len({*group.keys.ids.tolist()}) == 10 and {*group.keys.ids.tolist()} <= both
        old.append(group.old.sum())
    assert len({*old}) > 1 and np.mean(old) == pytest.approx(5, abs=1)  # half of the set, not of every batch


def ranking(scene, task, memory):
    """The order in which the method prefers a task's images, and its unit features of them."""
    render = scene.setup.render

    def answers(ids, answer):
        with torch.no_grad():
            return answer(copy.deepcopy(scene.method).eval(), render(plain_keys(ids)))

    return scene.method.rank(task, memory, answers), answers(task.labeled, icarl.unit_features)


def test_herding_by_hand(small, make_run):
    scene = SecondTask(small("method=icarl", "labels=12/class", "memory=240"), make_run)
    rank, features = ranking(scene, scene.task, Memory())
    assert torch.allclose(features.norm(dim=1), torch.ones(len(features)))
    for label in scene.task.classes:
        ids = scene.task.labeled[scene.task.labels == label]
        rows = features[scene.task.labels == label].double()
        mean, chosen = rows.mean(dim=0), []
        for k in range(1, len(ids) + 1):
            left = [i for i in range(len(ids)) if i not in chosen]
            chosen.append(min(left, key=lambda i: (mean - (rows[chosen].sum(dim=0) + rows[i]) / k).norm().item()))
        found = rank(label, np.random.default_rng(0).permutation(ids))
        assert found.tolist() == ids[chosen].tolist()
        assert found[0] == ids[(rows - mean).norm(dim=1).argmin()] and sorted(found) == sorted(ids)


def test_old_classes_keep_the_beginning_of_their_list(small, make_run):
    scene = SecondTask(small("method=icarl", "labels=12/class", "tasks=2"), make_run)
    first, second = scene.run.tasks[0], scene.task
    rank, _ = ranking(scene, first, Memory())
    for size in (60, 30, 16):  # each longer list starts with the shorter one
        memory = replay.update(Memory(), first.labeled, first.labels, first.seen, size, rank)
        for label in first.classes:
            kept, best = memory.ids[memory.labels == label], rank(label, first.labeled[first.labels == label])
            assert len(kept) in (size // 5, size // 5 + 1) and kept.tolist() == best[: len(kept)].tolist()
    later, _ = ranking(scene, second, memory)
    shrunk = replay.update(memory, second.labeled, second.labels, second.seen, 16, later)
    for label in first.classes:
        before, after = (known.ids[known.labels == label].tolist() for known in (memory, shrunk))
        assert 0 < len(after) < len(before) and after == before[: len(after)]


@pytest.mark.parametrize("flip", [0.0, 0.5])
def test_class_means_and_predictions_by_hand(small, make_run, flip):
    """Mirror images count where training sees them."""
    scene = SecondTask(small("method=icarl", f"views.flip={flip}"), make_run)
    method, memory, render = scene.method.eval(), scene.state.memory, scene.setup.render
    method.means[7] = 1.0  # of an earlier task, by now without exemplars
    with torch.no_grad():
        method.end(scene.task, memory, render)
        means = {}
        for label in sorted({*memory.labels.tolist()}):
            total = torch.zeros(method.means.shape[1])
            for image in memory.ids[memory.labels == label]:
                pixels = render(plain_keys(np.array([image])))
                for shown in (pixels, pixels.flip(-1) if flip else pixels):
                    feature = method.network(shown).features[0]
                    total += feature / feature.norm()
            means[label] = total / total.norm()
        pixels = render(plain_keys(scene.task.unlabeled[:50]))
        features, scores = method.network(pixels).features, method.predict(pixels)
    for label, mean in means.items():
        assert torch.allclose(method.means[label], mean, atol=1e-6)
    for feature, row in zip(features, scores, strict=True):
        distances = {label: (feature / feature.norm() - mean).norm().item() for label, mean in means.items()}
        assert [-row[label].item() for label in means] == pytest.approx(list(distances.values()), abs=1e-5)
        assert row.argmax().item() == min(distances, key=distances.get)
        assert row[sorted({*range(10)} - {*means})].eq(-torch.inf).all()


def test_a_rotation_of_all_features_changes_no_prediction(small, make_run):
    scene = SecondTask(small("method=icarl"), make_run)
    method, memory = scene.method.eval(), scene.state.memory
    with torch.no_grad():
        exemplars = icarl.unit_features(method, scene.setup.render(plain_keys(memory.ids))).double()
        queries = icarl.unit_features(method, scene.setup.render(plain_keys(scene.task.unlabeled))).double()
    random = torch.randn(*[exemplars.shape[1]] * 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    scores = []
    for turn in (torch.eye(len(random), dtype=torch.float64), torch.linalg.qr(random)[0]):
        turned = [(exemplars @ turn)[memory.labels == label] for label in (0, 1)]
        scores.append(icarl.closeness(queries @ turn, torch.stack([icarl.class_mean(rows, rows) for rows in turned])))
    assert torch.allclose(scores[0], scores[1])
    assert not torch.allclose(turned[0], exemplars[memory.labels == 0], atol=0.1)
    assert scores[0].argmax(dim=1).equal(scores[1].argmax(dim=1)) and len(scores[0].argmax(dim=1).unique()) == 2


def test_a_run_has_no_score_for_classes_to_come(small, make_run):
    method, state = engine.train(make_run(small("method=icarl", "tasks=2", "epochs=1", "unlabeled_batch=160")))
    assert state.ahead == [None] and state.untrained and method.means.isfinite().all()
    assert torch.allclose(method.means.norm(dim=1), torch.ones(10))


def test_values_by_data_set_and_refusals(small, make_run):
    loaded = config.load("cifar100", [{"method": "icarl"}])
    assert loaded.labeled_batch == 128 and loaded.memory_selection == "herding" and loaded.batchnorm == "train"
    expected = {"lr": 2.0, "momentum": 0.9, "nesterov": True, "milestones": [0.7, 0.9], "milestone_factor": 0.2}
    assert expected.items() <= loaded.own.items() and loaded.own["weight_decay"] == 2e-5
    assert [config.load(name, [{"method": "icarl"}]).own["lr"] for name in ("cifar10", "imagenet100")] == [0.1, 0.03]
    scene = SecondTask(small("method=icarl", "own.momentum=0.9", "own.nesterov=true"), make_run)
    assert scene.method.begin(scene.phase, scene.task)[0].defaults["nesterov"] is True
    with pytest.raises(ConfigError, match=r"own.nesterov=true needs momentum, got own.momentum=0.0"):
        config.load("digits", map(build.parse_assignment, ["method=icarl", "own.nesterov=true"]))
    with pytest.raises(ConfigError, match=r"memory=9: icarl .* 10 classes; use --memory 10"):
        SecondTask(small("method=icarl", "memory=9"), make_run, "few")
