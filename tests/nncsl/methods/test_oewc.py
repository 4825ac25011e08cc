"""Online EWC: importances and penalty by hand, and that it is finetuning where the penalty is nothing."""

import copy
import math

import numpy as np
import pytest
import torch

from nncsl import config, engine, networks
from nncsl.batches import plain_keys
from nncsl.config import build
from nncsl.errors import ConfigError
from nncsl.featurebank import fingerprint
from nncsl.methods import oewc
from nncsl.teachers import Teacher
from tests.nncsl.scenes import SecondTask


@pytest.fixture
def scene(small, make_run):
    """Before task 2, in fp64; network and head are no longer what they were at first."""
    made = SecondTask(small("method=oewc", "labels=2/class", "class_order=[3,1,4,0,5,9,2,6,8,7]"), make_run)
    made.method.double()
    return made


def end(scene):
    """End the task as the loop does."""
    with networks.evaluating(scene.method):
        scene.method.end(scene.task, scene.state.memory, lambda keys: scene.setup.render(keys).double())


def move(method, seed=0):
    """Take the weights somewhere else."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in method.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)


def probability(method, image, label, seen):
    """p(label | image) among the classes seen, from the formula."""
    with torch.no_grad():
        logits = method.network.head(method.network(image[None]).features)[0].tolist()
    return math.exp(logits[label]) / sum(math.exp(logits[c]) for c in seen)


def rows_of(scene):
    """(image, label) of the task's labeled images, plain."""
    images = scene.setup.render(plain_keys(scene.task.labeled)).double()
    return list(zip(images, scene.task.labels.tolist(), strict=True))


def test_without_strength_it_is_finetuning_bit_for_bit(small, make_run):
    def trained(name, *settings):
        method, state = engine.train(make_run(small("tasks=2", "unlabeled_batch=160", *settings), name))
        return fingerprint(method.network.state_dict()), state.accuracy_matrix

    finetuned = trained("finetune", "method=finetune", "own.lr=0.03")
    assert trained("free", "method=oewc", "own.strength=0") == finetuned
    assert trained("held", "method=oewc") != finetuned


def test_a_linear_models_importances_by_hand():
    """Three classes, two inputs, no bias: d log p_y / d w_cd = ([c = y] - p_c) x_d."""
    torch.manual_seed(0)
    weight = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    inputs, labels = torch.randn(5, 2, dtype=torch.float64), [0, 2, 1, 1, 0]
    found = oewc.fisher_information(
        ((weight @ x).log_softmax(0)[y] for x, y in zip(inputs, labels, strict=True)), [weight]
    )
    expected = np.zeros((3, 2))
    for x, y in zip(inputs.tolist(), labels, strict=True):
        scores = [math.exp(sum(w * v for w, v in zip(row, x, strict=True))) for row in weight.tolist()]
        p = [score / sum(scores) for score in scores]
        for c in range(3):
            for d in range(2):
                expected[c, d] += p[y] * (((c == y) - p[c]) * x[d]) ** 2 / 5
    assert found.numpy() == pytest.approx(expected.ravel(), rel=1e-12)


def test_a_networks_importances_are_those_of_its_differences(scene):
    """Some weights of every layer, each moved to and fro; head rows of unseen classes have no importance."""
    method, rows = scene.method, rows_of(scene)
    end(scene)
    assert bool((method.fisher >= 0).all())
    method.eval()
    parts = method.fisher.split([p.numel() for p in method.guarded])
    assert len(parts) == len(list(method.network.parameters())) - len(list(method.network.projector.parameters()))
    generator, step = np.random.default_rng(0), 1e-5
    for parameter, part in zip(method.guarded, parts, strict=True):
        place = tuple(int(generator.integers(size)) for size in parameter.shape)
        flat_place = int(np.ravel_multi_index(place, parameter.shape))
        expected = 0.0
        for image, label in rows:
            p = []
            for move_by in (step, -2 * step, step):  # ends where it was
                with torch.no_grad():
                    parameter[place] += move_by
                p.append(probability(method, image, label, scene.task.seen))
            slope = (math.log(p[0]) - math.log(p[1])) / (2 * step)
            expected += p[2] * slope**2 / len(rows)
        assert part[flat_place].item() == pytest.approx(expected, rel=1e-4, abs=1e-9)
    unseen = sorted(set(range(10)) - set(scene.task.seen))
    assert not parts[-1][unseen].any() and parts[-1][list(scene.task.seen)].all()  # the head's biases


def test_the_sweep_changes_nothing_else(scene):
    before = fingerprint(scene.network.state_dict())
    modes = [module.training for module in scene.network.modules()]
    end(scene)
    assert fingerprint(scene.network.state_dict()) == before
    assert [module.training for module in scene.network.modules()] == modes
    assert all(parameter.grad is None for parameter in scene.network.parameters())


@pytest.mark.parametrize("decay", [1.0, 0.4])
def test_importances_add_up_and_the_last_weights_hold(small, make_run, decay):
    scene = SecondTask(small("method=oewc", f"own.fisher_decay={decay}"), make_run)
    scene.method.double()
    alone = copy.deepcopy(scene.method)
    end(scene)
    first = scene.method.fisher.clone()
    assert first.any()
    for method in (scene.method, alone):
        move(method)
    end(scene)
    scene.method, both = alone, scene.method
    end(scene)
    assert torch.allclose(both.fisher, decay * first + alone.fisher, rtol=1e-12, atol=0)
    assert torch.equal(both.anchor, oewc.flat(both.guarded)) and not torch.equal(both.fisher, first)


def test_losses_by_hand(scene):
    method, strength = scene.method, scene.method.own.strength
    end(scene)
    move(method)
    losses = scene.losses(method, Teacher())
    expected = 0.0
    importances, anchors = method.fisher.tolist(), method.anchor.tolist()
    weights = [value for p in method.guarded for value in p.detach().flatten().tolist()]
    for importance, anchor, weight in zip(importances, anchors, weights, strict=True):
        expected += importance * (weight - anchor) ** 2
    assert expected > 1e-4
    assert losses.parts["ewc"].item() == pytest.approx(expected, rel=1e-9)
    assert losses.total.item() == pytest.approx(losses.parts["lin"].item() + strength * expected, rel=1e-6)

    gradients = oewc.flat(torch.autograd.grad(losses.parts["ewc"], method.guarded))
    assert torch.allclose(gradients, 2 * method.fisher * (oewc.flat(method.guarded) - method.anchor), rtol=1e-9)


def test_penalty_and_gradient_vanish_where_the_last_task_ended(scene):
    end(scene)
    ewc = scene.losses(scene.method, Teacher()).parts["ewc"]
    assert ewc.item() == 0
    assert not oewc.flat(torch.autograd.grad(ewc, scene.method.guarded)).any()


def test_the_first_task_has_no_penalty(small, make_run):
    run = make_run(small("method=oewc", "tasks=2", "epochs=1"))
    engine.train(run)
    first, second = [line for line in (run.folder / "metrics.jsonl").read_text().splitlines() if '"lin"' in line]
    assert '"ewc"' not in first and '"ewc"' in second


def test_settings():
    def own(preset, *assignments):
        return config.load(preset, map(build.parse_assignment, ["method=oewc", *assignments])).own

    for preset, expected in (("cifar10", (0.03, 10, 1)), ("cifar100", (0.03, 10, 1)), ("imagenet100", (0.03, 25, 1))):
        found = own(preset)
        assert (found["lr"], found["strength"], found["fisher_decay"]) == expected
    for setting, message in [
        ("own.strength=-1", "own.strength=-1.0: expected 0"),
        ("own.fisher_decay=1.5", "own.fisher_decay=1.5: expected a number from 0 to 1"),
    ]:
        with pytest.raises(ConfigError, match=message):
            own("digits", setting)
