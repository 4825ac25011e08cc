"""GDumb by its definition: fits to the memory alone, by fresh networks, with restarts and CutMix."""

import copy
import math

import numpy as np
import pytest
import torch

from nncsl import config, engine, methods, optim
from nncsl.config import build
from nncsl.errors import ConfigError
from nncsl.featurebank import fingerprint
from nncsl.methods import gdumb
from nncsl.methods.gdumb import GDumb
from nncsl.teachers import Teacher
from tests.nncsl.scenes import SecondTask


def generator(seed):
    return torch.Generator().manual_seed(seed)


def test_the_rate_of_every_epoch(small, make_run):
    scene = SecondTask(small("method=gdumb", "own.batch=4"), make_run)
    (phase,) = scene.method.phases(scene.task)
    assert (phase.epochs, phase.steps) == (256, 4)  # 16 images
    (optimizer,) = scene.method.begin(phase, scene.task)
    for epoch in range(256):
        expected = 0.005
        if epoch:
            start = max(2**k for k in range(9) if 2**k <= epoch)
            expected = 0.0005 + 0.5 * (0.05 - 0.0005) * (1 + math.cos(math.pi * (epoch - start) / start))
        for step in range(4):
            now = scene.now(0, 0)._replace(epoch=epoch, step=step, number=4 * epoch + step)
            assert optimizer.defaults["lr"] * phase.rate(phase.progress(now)) == pytest.approx(expected, rel=1e-9)
    assert optimizer.defaults["momentum"] == 0.9 and optimizer.defaults["weight_decay"] == 1e-6


@pytest.mark.parametrize(("height", "width"), [(8, 8), (5, 12)])
def test_cutmix_keeps_what_it_says(height, width):
    """Every image has one value, so pixels tell whose they are."""
    images = torch.arange(6.0).view(6, 1, 1, 1).expand(6, 2, height, width).clone()
    shares, uncut = [], 0
    for seed in range(300):
        mixed, partners, kept = gdumb.draw_mix(images, 1.0, generator(seed))
        assert sorted(partners.tolist()) == list(range(6))
        for image, partner in enumerate(partners.tolist()):
            pasted = mixed[image] != image
            assert (mixed[image][pasted] == partner).all()
            if partner != image:
                assert pasted.sum().item() / pasted.numel() == pytest.approx(1 - kept, abs=1e-12)
                rows, columns = pasted[0].any(dim=1), pasted[0].any(dim=0)
                assert pasted[0].sum() == rows.sum() * columns.sum()  # one box
                uncut += not (rows[0] or rows[-1] or columns[0] or columns[-1])
        shares.append(kept)
    assert (images == torch.arange(6.0).view(6, 1, 1, 1)).all()  # the originals stay
    assert uncut and min(shares) < 0.4 and max(shares) > 0.9


def test_the_box_by_hand():
    assert gdumb.box(8, 4, 0.75) == slice(2, 6)  # half of each side, a quarter of the area
    assert gdumb.box(8, 0, 0.75) == slice(0, 2) and gdumb.box(8, 7, 0.75) == slice(5, 8)  # cut off at the border
    assert gdumb.box(9, 4, 0.75) == slice(2, 6)  # 4.5 pixels, rounded down
    assert gdumb.box(8, 5, 1.0) == slice(5, 5) and gdumb.box(8, 4, 0.0) == slice(0, 8)
    mix = gdumb.paste(torch.zeros(2, 1, 8, 8), torch.tensor([1, 0]), slice(0, 2), slice(2, 6))
    assert mix.kept == 1 - 8 / 64


def test_cutmix_happens_as_often_as_asked():
    images = torch.rand(4, 1, 8, 8, generator=generator(0))
    for probability, low, high in ((0.0, 0, 0), (0.5, 160, 240), (1.0, 380, 400)):
        mixed = sum(gdumb.draw_mix(images, probability, generator(seed)).kept < 1 for seed in range(400))
        assert low <= mixed <= high


def test_the_loss_of_a_step_by_hand(small, make_run):
    scene = SecondTask(small("method=gdumb", "own.cutmix=1"), make_run)
    method, seen = copy.deepcopy(scene.method).double(), [*scene.task.seen]
    setup = scene.setup._replace(render=lambda keys: scene.setup.render(keys).double())
    for number in range(4):
        step = engine.look(method, setup, scene.phase, scene.now(0, number), Teacher(), method.network)
        mix = gdumb.draw_mix(step.pixels["labeled"], 1.0, step.generator("cutmix"))
        with torch.no_grad():
            network = copy.deepcopy(method.network)
            logits = network.head(network(mix.images).features)
        labels, total = step.labels("labeled"), 0.0
        for row, partner in enumerate(mix.partners.tolist()):
            norm = math.log(sum(math.exp(z) for z in logits[row, seen].tolist()))  # over seen classes only
            for label, weight in ((labels[row], mix.kept), (labels[partner], 1 - mix.kept)):
                total += weight * (norm - logits[row, label].item())
        assert method.losses(step).total.item() == pytest.approx(total / len(labels), rel=1e-5)


def test_a_fit_does_not_depend_on_the_network_before(small, make_run, monkeypatch):
    settings = ("method=gdumb", "tasks=2", "own.epochs=2")
    expected, state = engine.train(make_run(small(*settings), "as it is"))

    def damaging(self, task, memory, render):
        if task.index == 0:
            for value in self.network.state_dict().values():
                value.add_(1)

    monkeypatch.setattr(GDumb, "end", damaging)
    method, damaged = engine.train(make_run(small(*settings), "damaged"))
    assert fingerprint(method.state_dict()) == fingerprint(expected.state_dict())
    assert damaged.accuracy_matrix[0] != state.accuracy_matrix[0]  # the damage was done
    assert damaged.accuracy_matrix[1] == state.accuracy_matrix[1]


def test_every_task_and_seed_starts_from_another_network(small, make_run):
    found = set()
    for seed in (0, 1):
        scene = SecondTask(small("method=gdumb", f"seed={seed}"), make_run, f"run{seed}")
        for task in scene.run.tasks[:2]:
            for _ in range(2):  # whatever happened before
                methods.begin(scene.method, 0, scene.phase, task)
                found.add(fingerprint(scene.network.state_dict()))
                scene.network.train()(torch.rand(4, 1, 8, 8))
    assert len(found) == 4


def test_it_learns_from_a_balanced_memory_alone(small, make_run, monkeypatch):
    """That of the task itself among it; an epoch shows every image once."""
    losses, shown = GDumb.losses, {}

    def watching(self, step):
        batch = step.batch["labeled"]
        shown.setdefault((step.task.index, step.now.epoch), []).append((batch.keys.ids, batch.labels.numpy()))
        return losses(self, step)

    monkeypatch.setattr(GDumb, "losses", watching)
    settings = ("method=gdumb", "tasks=2", "memory=18", "own.epochs=2", "own.batch=4")
    _, state = engine.train(make_run(small(*settings)))
    for (task, _), steps in shown.items():
        assert sorted(len(ids) for ids, _ in steps) == [3, 3, 4, 4, 4]  # 18 images in nearly equal parts
        labels = np.concatenate([labels for _, labels in steps])
        assert [*np.bincount(labels)] == ([4, 4, 4, 3, 3] if task == 0 else [2] * 8 + [1] * 2)
    orders = [np.concatenate([ids for ids, _ in steps]) for steps in shown.values()]
    assert [sorted(order) for order in orders[2:]] == [sorted(state.memory.ids)] * 2
    assert sorted(orders[0]) == sorted(orders[1]) and orders[0].tolist() != orders[1].tolist()


def test_no_batch_of_one_image(small, make_run):
    scene = SecondTask(small("method=gdumb"), make_run)
    for images in range(3, 60):
        for size in (3, 4, 7, 16):
            moments = [scene.now(0, 0)._replace(number=number) for number in range(-(-images // size))]
            parts = [scene.setup.draws.in_turn(np.arange(images), now, size, "any") for now in moments]
            assert all(2 <= len(part) <= size for part in parts)
            assert sorted(np.concatenate(parts)) == list(range(images))


def test_long_gradients_are_shortened():
    for length in (4.0, 400.0):
        clipped, plain = (torch.nn.Parameter(torch.zeros(2, 8)) for _ in range(2))
        spare = torch.nn.Parameter(torch.ones(3))  # without a gradient
        direction = torch.nn.functional.normalize(torch.rand(16, generator=generator(0)), dim=0).view(2, 8)
        clipped.grad, plain.grad = length * direction, min(length, 10) * direction
        optim.ClippedSGD([clipped, spare], 10, lr=0.1, momentum=0.9).step()
        torch.optim.SGD([plain], lr=0.1, momentum=0.9).step()
        assert torch.allclose(clipped, plain, rtol=1e-5) and spare.eq(1).all()


def test_the_nearest_power_of_two():
    for number in np.arange(0.1, 70, 0.1):
        assert gdumb.nearest_power(number) == min((1, 2, 4, 8, 16, 32, 64), key=lambda power: abs(power - number))


def test_with_no_epochs_given_it_takes_about_the_steps_of_others(small, make_run):
    scene = SecondTask(small("method=gdumb", "own.epochs=0", "epochs=30", "unlabeled_batch=32"), make_run)
    (phase,) = scene.method.phases(scene.task)
    budget = 30 * scene.task.steps
    assert phase.steps == 1 and phase.epochs == 2 ** round(math.log2(phase.epochs))
    assert abs(phase.epochs - budget) <= min(abs(phase.epochs * 2 - budget), abs(phase.epochs / 2 - budget))


def test_refusals(small, make_run):
    for setting, words in [
        ("own.epochs=250", "own.epochs=250: expected a power of two"),
        ("own.epochs=-2", "own.epochs=-2: expected 0 or more"),
        ("own.batch=2", "own.batch=2: expected 3 or more"),
        ("own.cutmix=1.5", "own.cutmix=1.5: expected a number from 0 to 1"),
        ("own.clip=0", "own.clip=0.0: expected a number above 0"),
    ]:
        with pytest.raises(ConfigError, match=words):
            config.load("digits", map(build.parse_assignment, ["method=gdumb", setting]))
    for number, (setting, words) in enumerate(
        [("memory=0", "memory=0"), ("memory_selection=herding", "expected random")]
    ):
        with pytest.raises(ConfigError, match=words):
            SecondTask(small("method=gdumb", setting), make_run, f"run{number}")
