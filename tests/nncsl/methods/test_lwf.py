"""LwF: its two phases, what is recorded of the old network, and its loss by hand."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from nncsl import config, engine, methods, objectives, optim
from nncsl.config import build
from nncsl.errors import ConfigError
from nncsl.featurebank import fingerprint
from nncsl.methods import schedules
from tests.nncsl.scenes import SecondTask

ORDER = "class_order=[3,1,4,0,5,9,2,6,8,7]"  # columns are classes, not places in the order of tasks


def in_phase(scene, number):
    """Take the scene to another phase of its task; return that phase's optimizer."""
    scene.phase = scene.method.phases(scene.task)[number]
    (optimizer,) = methods.begin(scene.method, number, scene.phase, scene.task)
    scene.method.mode(scene.phase, scene.task)
    return optimizer


@pytest.fixture
def scene(small, make_run):
    """The first step of task 2's training proper, where the warm-up has moved the new outputs."""
    made = SecondTask(small("method=lwf", "bank_codec=fp32", ORDER), make_run)
    warm_up(made, steps=3)
    in_phase(made, 1)
    return made


def warm_up(scene, steps):
    optimizer = in_phase(scene, 0)
    teacher = scene.teacher("none")
    for step in range(steps):
        scene.method.zero_grad()
        optim.set_rates([optimizer], scene.phase.rate(0.5))
        scene.losses(scene.method, teacher, step=step).total.backward()
        optimizer.step()


def softmax(row):
    """From the formula."""
    powers = [math.exp(value) for value in row]
    return [power / sum(powers) for power in powers]


def test_task_one_is_finetuning_and_later_ones_warm_up_first(small, make_run):
    one_task = ("tasks=1", "epochs=1", "own.lr=0.03")
    found = [engine.train(make_run(small(f"method={name}", *one_task), name))[0] for name in ("lwf", "finetune")]
    assert fingerprint(found[0].network.state_dict()) == fingerprint(found[1].network.state_dict())

    scene = SecondTask(small("method=lwf"), make_run, "second")
    phases = scene.method.phases(scene.task)
    assert [phase.name for phase in phases] == ["warm-up", "train"]
    assert phases[0][1:3] == phases[1][1:3] == (scene.config.epochs, scene.task.steps)
    assert [phase.name for phase in scene.method.phases(replace(scene.task, old=()))] == ["train"]
    assert phases[0].rate(0.9) == schedules.constant()(0.9)


@pytest.mark.parametrize("optimizer", ["plain", "preset"])
def test_the_warm_up_moves_the_new_outputs_and_nothing_else(small, make_run, optimizer):
    settings = ("method=lwf", ORDER, "own.weight_decay=0.1", "own.momentum=0.5", f"own.optimizer={optimizer}")
    scene = SecondTask(small(*settings), make_run)
    before = {name: value.clone() for name, value in scene.network.state_dict().items()}
    warm_up(scene, steps=3)
    after = scene.network.state_dict()
    current = list(scene.task.classes)
    others = [c for c in range(10) if c not in current]
    for name, value in after.items():
        if name.startswith("head."):
            assert torch.equal(value[others], before[name][others]), name
            assert (value[current] != before[name][current]).any(), name
        else:
            assert torch.equal(value, before[name]), name


def test_the_warm_up_loss_by_hand(small, make_run):
    scene = SecondTask(small("method=lwf", ORDER), make_run)
    scene.method.double()
    losses = scene.losses(scene.method, scene.teacher("none"))
    group = scene.method.draw(scene.setup.draws, scene.now(0, 0))["labeled"]
    with torch.no_grad():
        logits = scene.network.head(scene.network(scene.setup.render(group.keys).double()).features).tolist()
    current, expected = scene.task.classes, 0.0
    for row, label in zip(logits, group.labels.tolist(), strict=True):
        p = softmax([row[c] for c in current])
        expected -= math.log(p[current.index(label)]) / len(logits)
    assert losses.total.item() == pytest.approx(expected, rel=1e-6)
    assert not scene.network.training and set(losses.parts) == {"lin"}


@pytest.mark.parametrize("mode", ["features", "model"])
def test_losses_by_hand(scene, mode):
    method, task = scene.method, scene.task
    teacher = scene.teacher(mode)
    group = method.draw(scene.setup.draws, scene.now(0, 0))["labeled"]
    with torch.no_grad():  # what the old network says of the images as evaluation sees them
        method.eval()
        plain = scene.setup.render(replace(group.keys, kind="plain", slots=0 * group.keys.slots))
        recorded = method.network.head(method.network(plain).features).tolist()
        for parameter in method.parameters():  # the student moves on
            parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    method.double().mode(scene.phase, task)
    losses = scene.losses(method, teacher)
    method.mode(scene.phase, task)
    with torch.no_grad():
        logits = method.network.head(method.network(scene.setup.render(group.keys).double()).features).tolist()
    teacher.close()

    lin = kd = 0.0
    for row, said, label in zip(logits, recorded, group.labels.tolist(), strict=True):
        lin -= math.log(softmax([row[c] for c in task.seen])[task.seen.index(label)]) / len(logits)
        p, q = (softmax([values[c] / 2 for c in task.old]) for values in (row, said))
        kd -= sum(target * math.log(found) for target, found in zip(q, p, strict=True)) / len(logits)
    assert {name: part.item() for name, part in losses.parts.items()} == pytest.approx({"lin": lin, "kd": kd}, rel=1e-5)
    assert losses.total.item() == pytest.approx(lin + 0.5 * kd, rel=1e-5)


def test_before_the_first_step_distillation_pulls_nowhere(scene):
    """In eval mode on plain images: the network still says what was recorded."""
    method = scene.method
    method.own = replace(method.own, views="plain")
    teacher = scene.teacher()
    method.eval()
    losses = scene.losses(method, teacher)
    teacher.close()
    weights = [p for name, p in method.network.named_parameters() if not name.startswith("projector.")]
    kd, lin = (
        max(gradient.abs().max().item() for gradient in torch.autograd.grad(part, weights, retain_graph=True))
        for part in (losses.parts["kd"], losses.parts["lin"])
    )
    assert kd < 1e-6 < 1e-2 < lin


def test_a_bank_and_a_copied_network_say_the_same(scene):
    found = []
    for teacher in [scene.teacher(mode) for mode in ("features", "model")]:  # both asked before a pass moves statistics
        found.append([scene.losses(scene.method, teacher, step=step).parts["kd"].item() for step in range(3)])
        teacher.close()
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_what_is_recorded(scene):
    """One row of the old classes' logits for each labeled image of the task, whatever the warm-up did."""
    (asked,) = scene.asks().values()
    assert asked.kind == "plain" and np.array_equal(asked.ids, scene.task.labeled)
    scene.method.eval()
    pixels = scene.setup.render(scene.method.draw(scene.setup.draws, scene.now(0, 0))["labeled"].keys)
    before = asked.answer(scene.method, pixels)
    assert before.shape == (len(pixels), len(scene.task.old))
    warm_up(scene, steps=2)
    assert torch.equal(asked.answer(scene.method, pixels), before)
    assert scene.asks() == {}  # now in the warm-up


def test_replaced_views_leave_it_alone(small, make_run):
    """A plain image has no other views: nothing is swept again, and no old weights are kept to do that with."""

    def trained(name, *settings):
        run = make_run(small("method=lwf", "tasks=2", "unlabeled_batch=160", *settings), name)
        method, _ = engine.train(run)
        return fingerprint(method.state_dict()), sorted(path.name for path in (run.folder / "checkpoint").iterdir())

    assert trained("kept") == trained("replaced", "bank_refresh_epochs=1")


def test_without_a_teacher_it_is_finetuning_after_a_warm_up(small, make_run):
    run = make_run(small("method=lwf", "tasks=2", "epochs=1", "teacher_mode=none"))
    _, state = engine.train(run)
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    epochs = [line for line in lines if line["kind"] == "epoch"]
    assert [(line["task"], line.get("phase")) for line in epochs] == [(0, None), (1, "warm-up"), (1, "train")]
    assert all("lin" in line and "kd" not in line for line in epochs) and len(state.accuracy_matrix) == 2


def test_kd_is_the_softened_loss_with_its_gradient_kept_large():
    logits, teacher = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0))
    soft = objectives.softened_loss(logits, teacher, 3.0)
    assert objectives.kd_loss(logits, teacher, 3.0).item() == pytest.approx(9 * soft.item())


def test_settings():
    def own(preset, *assignments):
        return config.load(preset, map(build.parse_assignment, ["method=lwf", *assignments])).own

    expected = {"cifar10": (0.03, 0, 0.5), "cifar100": (0.03, 5e-4, 0.5), "imagenet100": (0.01, 5e-4, 1)}
    for preset, values in expected.items():
        found = own(preset)
        assert (found["lr"], found["weight_decay"], found["strength"]) == values and found["temperature"] == 2
    for setting in ("own.strength=-1", "own.temperature=0"):
        with pytest.raises(ConfigError, match=setting):
            own("digits", setting)
