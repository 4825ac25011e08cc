"""ORDisCo: its losses against naive ones in fp64, who gets which gradient, what is held, stored and shown."""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from nncsl import engine, methods, networks, planner, report, runs
from nncsl.batches import Draws, plain_keys
from nncsl.errors import ConfigError
from nncsl.featurebank import fingerprint
from nncsl.methods import ordisco_losses
from nncsl.methods.ordisco import ORDisCo
from nncsl.methods.ordisco_gan import to_generated_range, to_normalized
from nncsl.planner import imagined
from nncsl.planner.sizes import Sizes
from nncsl.record import checkpoint
from nncsl.record.snapshots import read_snapshot
from nncsl.replay import Memory
from nncsl.teachers import Teacher
from tests.nncsl.methods.test_ordisco_losses import naive_consistency, naive_cross_entropy, naive_hinge, softmax
from tests.nncsl.scenes import SecondTask, trained_in_pieces

QUICK = ("method=ordisco", "own.channels=8", "own.latent=6", "own.anchoring_images=5", "labeled_batch=6")


@pytest.fixture
def scene(small, make_run):
    """The second of five tasks: all players learn, and a fifth of the run is over."""
    return SecondTask(small(*QUICK, "tasks=5"), make_run)


def drawn(scene, number=0, dtype=torch.float64):
    """A step of the scene, and the method in the step's precision."""
    setup = scene.setup._replace(render=lambda keys: scene.setup.render(keys).to(dtype))
    method = scene.method.to(dtype)
    return method, engine.look(method, setup, scene.phase, scene.now(0, number), Teacher(), method.network)


def test_the_discriminators_loss_is_the_formula(scene):
    method, step = drawn(scene)
    view = step.pixels
    judged = {name: view[f"judged {name}"][:6] for name in ("labeled", "unlabeled")}
    labels, seen = step.labels("judged labeled")[:6], list(step.task.seen)
    with networks.evaluating(method):
        made, classes = method.make(step, "judged 0")
        logits = networks.head_logits(method.network, judged["unlabeled"]).double()
        score = {name: method.discriminator(to_generated_range(x, method.config.views)) for name, x in judged.items()}
        guesses = torch.zeros(6, 10, dtype=torch.float64)
        for row, values in zip(guesses, logits.tolist(), strict=True):
            row[seen] = torch.tensor(softmax([values[c] for c in seen]), dtype=torch.float64)
        method.discriminator.importance.uniform_(0, 2)
        method.discriminator.anchor.add_(0.1)
        moved = 0.0
        at = iter(zip(method.discriminator.anchor.tolist(), method.discriminator.importance.tolist(), strict=True))
        for weights in method.discriminator.parameters():
            for value in weights.flatten().tolist():
                anchor, weight = next(at)
                moved += weight * (value - anchor) ** 2
        inputs = (made, classes, judged["labeled"], labels, judged["unlabeled"], guesses)
        found = method.discriminator_loss(*inputs)
        false = method.discriminator(made)
    rows = (score["labeled"], labels, false, classes, score["unlabeled"], guesses)
    expected = naive_hinge(*(each.tolist() for each in rows), a=0.5) + 0.01 * moved
    assert found.item() == pytest.approx(expected, rel=1e-12) and moved > 0.1


def test_the_classifiers_loss_is_the_formula(scene, monkeypatch):
    """At 0.25 of the run: the replayed images' ramp is between its ends, that of consistency is over."""
    progress = 0.25
    monkeypatch.setattr(ORDisCo, "passed", lambda self, task, part: progress)
    method, step = drawn(scene)
    before, seen = copy.deepcopy(method), list(step.task.seen)
    found = method.losses(step)
    made, classes = before.make(step, "made")
    images = to_normalized(made.detach(), method.config.views)
    halves = {name: step.pixels[name].chunk(2) for name in ("labeled", "unlabeled")}
    own = [networks.head_logits(before.network, x) for x in (torch.cat([v[0] for v in halves.values()]), images)]
    others = [networks.head_logits(before.average, x) for x in (torch.cat([v[1] for v in halves.values()]), images)]
    labels = step.labels("labeled")[:6]
    at = torch.tensor([seen.index(int(y)) for y in labels]), torch.tensor([seen.index(int(y)) for y in classes])
    lin = naive_cross_entropy(own[0][:6, seen], at[0])
    generated = naive_cross_entropy(own[1][:, seen], at[1])
    consistency = naive_consistency(torch.cat(own), torch.cat(others), seen)
    rising = math.exp(-5 * (1 - (progress * 240 - 50) / 20) ** 2)
    expected = lin + 10 * consistency + rising * 3 * generated
    assert found.parts["lin"].item() == pytest.approx(lin, rel=1e-5)
    assert found.parts["consistency"].item() == pytest.approx(consistency, rel=1e-4)
    assert (found.total - found.parts["generator"]).item() == pytest.approx(expected, rel=1e-5)
    assert consistency > 1e-6 and 0.2 < rising < 0.9  # so that each would be missed


def test_the_generators_loss_is_minus_its_images_scores(scene):
    method, step = drawn(scene)
    made, classes = method.make(step, "made")
    method.discriminator.eval()
    found = ordisco_losses.generator_loss(method.discriminator, made, classes)
    scores = method.discriminator(made).tolist()
    assert found.item() == pytest.approx(-sum(s[y] for s, y in zip(scores, classes.tolist(), strict=True)) / 6)
    assert set(classes.tolist()) <= set(step.task.seen)


def test_each_player_gets_the_gradient_of_its_own_loss(scene):
    """None reaches the generator through the others' losses, and none the discriminator through the generator's."""
    method, step = drawn(scene)
    found = method.losses(step)
    players = {name: list(getattr(method, name).parameters()) for name in ("generator", "discriminator", "network")}
    # The discriminator's updates are over: they left no gradient anywhere.
    assert all(p.grad is None for p in method.parameters())
    classifier = sum(found.parts[name] for name in ("lin", "generated", "consistency"))
    asked = players["generator"] + players["discriminator"]
    assert all(g is None for g in torch.autograd.grad(classifier, asked, retain_graph=True, allow_unused=True))
    rest = players["discriminator"] + players["network"]
    alone = found.parts["generator"]
    assert all(g is None for g in torch.autograd.grad(alone, rest, retain_graph=True, allow_unused=True))
    expected = torch.autograd.grad(alone, players["generator"], retain_graph=True)
    found.total.backward()
    assert all(p.grad is None for p in players["discriminator"]) and all(p.requires_grad for p in rest)
    for weights, gradient in zip(players["generator"], expected, strict=True):
        assert torch.allclose(weights.grad, gradient, atol=1e-12)
    assert all(p.grad is not None for p in method.network.head.parameters())
    assert all(p.grad is None for p in method.average.parameters())


def test_a_step_has_five_updates_of_the_discriminator(scene):
    method, step = drawn(scene, dtype=torch.float32)
    *_, of_generator, of_discriminator = optimizers = methods.begin(method, 0, scene.phase, scene.task)
    before = [fingerprint(player.state_dict()) for player in (method.discriminator, method.network)]
    method.losses(step).total.backward()
    for optimizer in optimizers:
        if any(p.grad is not None for group in optimizer.param_groups for p in group["params"]):
            optimizer.step()
    counts = {name: {int(s["step"]) for s in o.state.values()} for name, o in zip("GD", optimizers[1:], strict=True)}
    assert counts == {"G": {1}, "D": {5}} and of_generator is not of_discriminator
    after = [fingerprint(player.state_dict()) for player in (method.discriminator, method.network)]
    assert before[0] != after[0] and before[1] != after[1]


def test_at_first_the_classifier_learns_alone(small, make_run):
    run = make_run(small(*QUICK, "tasks=5"))
    method = methods.build(run.config, 10)
    setup = engine.set_up(run, engine.Stream(run.source, run.tasks), Memory(), 0)
    phase = method.phases(setup.task)[0]
    methods.begin(method, 0, phase, setup.task)
    before = fingerprint(method.discriminator.state_dict())
    scene_steps = phase.epochs * phase.steps
    number = math.ceil(scene_steps * 5 / 12)  # a twelfth of five tasks
    for at, learned in ((number - 1, {"lin", "consistency"}), (number, {"discriminator", "generator", "generated"})):
        now = engine.Moment(0, 0, 0, at)
        found = method.losses(engine.look(method, setup, phase, now, Teacher(), method.network))
        assert learned <= set(found.parts) and (fingerprint(method.discriminator.state_dict()) == before) == (
            at < number
        )


def test_a_tasks_end_changes_what_is_held_and_the_average_alone(scene):
    method = scene.method
    kept = ("network", "generator", "discriminator.blocks")
    before = [fingerprint(method.get_submodule(name).state_dict()) for name in kept]
    with networks.evaluating(method):
        method.end(scene.task, scene.state.memory, scene.setup.render)
    assert [fingerprint(method.get_submodule(name).state_dict()) for name in kept] == before
    held = method.discriminator
    assert held.importance.mean().item() == pytest.approx(0.5)  # of two tasks; the first had no end here
    assert torch.equal(held.anchor, ordisco_losses.flat(held.parameters()))


@pytest.mark.parametrize("optimizer", ["plain", "adam"])
def test_the_average_follows_every_update_once(small, make_run, monkeypatch, optimizer):
    settings = ("tasks=2", "epochs=1", "unlabeled_batch=160", "own.ramp=0.4", "own.decays=[0.5,0.8]")
    run = make_run(small(*QUICK, *settings, f"own.optimizer={optimizer}"))
    losses, end = ORDisCo.losses, ORDisCo.end
    seen, rates = [], []

    def weights(module):
        return ordisco_losses.flat(module.parameters()).detach().clone()

    def watching(self, step):
        if step.now.number or not seen:
            seen.append((self.passed(step.task, step.progress), weights(self.network)))
        found = losses(self, step)
        rates.append((self.passed(step.task, step.progress), self._of_classifier.param_groups[0]["lr"]))
        return found

    def watching_end(self, task, memory, render):
        seen.append((self.passed(task, 1), weights(self.network)))
        end(self, task, memory, render)

    monkeypatch.setattr(ORDisCo, "losses", watching)
    monkeypatch.setattr(ORDisCo, "end", watching_end)
    method, _ = engine.train(run)
    expected = seen[0][1].double()
    for now, newest in seen[1:]:
        decay = 0.5 if now < 0.4 else 0.8
        expected = decay * expected + (1 - decay) * newest
    assert len(seen) == 1 + len(rates)  # one update for each step
    assert torch.allclose(weights(method.average).double(), expected, atol=1e-5)
    images = torch.randn(4, 1, 8, 8)
    method.eval()
    assert torch.equal(method.predict(images), networks.head_logits(method.average, images))
    for now, rate in rates:
        ramped = 0.003 * math.exp(-5 * max(0, 1 - now / 0.4) ** 2)
        assert rate == pytest.approx(ramped if optimizer == "adam" else 0.1)


def test_stopped_at_any_step_it_ends_the_same(small, make_run, monkeypatch):
    settings = (*QUICK, "tasks=2", "epochs=2", "unlabeled_batch=210", "own.optimizer=adam")
    expected, _ = engine.train(make_run(small(*settings), "whole"))
    method, _, calls = trained_in_pieces(make_run(small(*settings), "stopped"), monkeypatch)
    assert len(calls) == len(set(calls)) >= 8 and {task for task, *_ in calls} == {0, 1}
    assert fingerprint(method.state_dict()) == fingerprint(expected.state_dict())


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_lower_precision_is_the_classifiers_alone(small, make_run, precision):
    settings = ("tasks=2", "epochs=1", "unlabeled_batch=160", f"precision={precision}")
    method, state = engine.train(make_run(small(*QUICK, *settings)))
    assert all(torch.isfinite(p).all() and p.dtype == torch.float32 for p in method.parameters())
    assert method.discriminator.importance.mean().item() == pytest.approx(1, rel=1e-3) and len(state.seen_accuracy) == 2


def test_every_labeled_image_is_kept_and_counted(small, tmp_path):
    folder = tmp_path / "run"
    loaded = small(*QUICK, "memory=8", "labels=4/class", "tasks=5", "epochs=1", "unlabeled_batch=200")
    summary = runs.start(loaded, folder, quiet=True)
    state = runs.RunState.unpack(checkpoint.load(folder / "checkpoint" / "state.pt")["state"])
    tasks = runs.reopen(folder).tasks
    labeled = np.concatenate([task.labeled for task in tasks])
    assert len(labeled) == 40 and set(state.memory.ids.tolist()) == set(labeled.tolist())
    held, method = summary["peak_memory"], runs.reopen(folder).method
    assert held["memory"] == 40 * 64
    for name in ("generator", "discriminator"):
        assert held[name] == networks.nbytes(getattr(method, name)) > 0
    assert held["student"] == 2 * networks.nbytes(method.network)  # and its average

    # What it makes is in the report: eight of each class, of twenty that are kept.
    after = [read_snapshot(folder, task.index).samples for task in tasks]
    assert [len(samples) for samples in after] == [2, 4, 6, 8, 10]
    assert all(images.shape == (20, 8, 8, 1) and images.dtype == np.uint8 for images in after[-1].values())
    page = report.write([folder]).read_text()
    sheet = page.split('id="generated-sheet"')[1].split("</figure>")[0]
    assert sheet.count('src="data:image/png') == 80 and "memory all labeled images" in page
    assert all(f'data-name="{name}"' in page for name in ("generator", "discriminator", "memory"))


def test_a_run_that_makes_no_images_has_no_sheet(small, tmp_path):
    runs.start(small("method=er", "tasks=2", "epochs=1", "unlabeled_batch=200"), tmp_path / "run", quiet=True)
    assert "generated-sheet" not in report.write([tmp_path / "run"]).read_text()


def test_classes_take_turns_however_few_images_they_have(scene):
    task = scene.task
    few = replace(task, labeled=task.labeled[:1], labels=task.labels[:1])
    draws = Draws(few, scene.state.memory, scene.config)
    known = dict(zip([*few.labeled, *draws.memory.ids], [*few.labels, *draws.memory.labels], strict=True))
    ids = draws.balanced(scene.now(0, 0), 12, "labeled")
    assert len(set(known.values())) == 3
    for part in np.split(ids, 4):
        assert len({known[i] for i in part}) == 3  # each class once, in each part
    assert not np.array_equal(ids, draws.balanced(scene.now(0, 1), 12, "labeled"))
    batch = scene.method.draw(scene.setup.draws, scene.now(0, 0))
    for group in batch.values():
        views = list(zip(group.keys.ids.tolist(), group.keys.slots.tolist(), strict=True))
        assert len(set(views)) == len(views)  # no view twice
    assert not set(batch["judged unlabeled"].keys.ids) - set(task.unlabeled)


def test_images_change_between_both_ranges_and_back(scene):
    policy = scene.config.views
    pixels = scene.setup.render(plain_keys(scene.task.labeled))
    inside = to_generated_range(pixels, policy)
    assert inside.min().item() == pytest.approx(-1, abs=1e-5) and inside.max().item() == pytest.approx(1, abs=1e-5)
    assert torch.allclose(to_normalized(inside, policy), pixels, atol=1e-5)
    made = scene.method.generate(torch.tensor([0, 1, 1]), torch.Generator().manual_seed(0))
    again = scene.method.generate(torch.tensor([0, 1, 1]), torch.Generator().manual_seed(0))
    assert made.shape == (3, 1, 8, 8) and torch.equal(made, again)
    assert to_generated_range(made, policy).abs().max().item() <= 1 + 1e-5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("views.large.size=12",), "views.large.size=12.*8, 16, 32"),
        (("views.large.size=2",), "views.large.size=2: "),
        (("own.d_steps=0",), "own.d_steps=0: expected 1 or more"),
        (("own.made_share=1.5",), "made_share=1.5"),
        (("own.replay=[0.3,0.2]",), "two rising ones"),
        (("own.optimizer=lars",), "own.optimizer='lars': expected one of plain, adam"),
    ],
)
def test_what_can_not_be_is_refused(small, settings, message):
    with pytest.raises(ConfigError, match=message):
        methods.build(small(*QUICK, *settings), 10)


def test_the_planner_counts_on_every_labeled_image(small):
    method = methods.build(small(*QUICK, "memory=8", "tasks=5"), 10)
    _, memory = imagined.task_and_memory(method, Sizes(10, 260, 8, 0), -1)
    assert len(memory.ids) == 32


def test_a_budget_is_refused_as_its_passes_are_not_planned(small):
    with pytest.raises(ConfigError, match="memory_budget=1GB: ordisco also trains its generator and discriminator"):
        planner.without_training(small(*QUICK, "memory_budget=1GB"), torch.device("cpu"), lambda text: None)
