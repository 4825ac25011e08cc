"""NNCSL+: what is kept and shown of earlier tasks, who agrees, what that weighs; without both it is NNCSL."""

import numpy as np
import pytest
import torch

from nncsl import engine, methods, networks, replay
from nncsl.batches import Moment, plain_keys
from nncsl.data.tasks import Forbidden, Stream
from nncsl.errors import ConfigError
from nncsl.featurebank import fingerprint
from nncsl.methods.nncsl_plus import NNCSLPlus, agreed_loss, surest
from nncsl.replay import Memory
from nncsl.teachers import Teacher
from tests.nncsl.scenes import trained_in_pieces

SHORT = ("method=nncsl-plus", "tasks=2", "epochs=1", "unlabeled_batch=240", "bank_views=1")


class SecondTaskWithGuesses:
    """Digits at the start of task 2, with an untrained network's guesses of task 1's images."""

    def __init__(self, loaded, make_run):
        self.run = make_run(loaded)
        self.method = methods.build(loaded, self.run.source.num_classes)
        stream, first = Stream(self.run.source, self.run.tasks), self.run.tasks[0]
        setup = engine.set_up(self.run, stream, Memory(), 0)
        memory = Memory(first.labeled, first.labels)
        with networks.evaluating(self.method):
            self.method.end(setup.task, memory, setup.render)
        self.setup = engine.set_up(self.run, stream, memory, 1, self.method.keeps())
        self.task, self.phase = self.setup.task, self.method.phases(self.setup.task)[0]
        methods.begin(self.method, 0, self.phase, self.task)
        self.method.mode(self.phase, self.task)

    def step(self, number=0):
        now = Moment(0, 0, number, number)
        return engine.look(self.method, self.setup, self.phase, now, Teacher(), self.method.network)


@pytest.fixture
def scene(small, make_run):
    return SecondTaskWithGuesses(small("method=nncsl-plus", "tasks=5", "own.images=60", "own.batch=7"), make_run)


def test_surest_by_hand():
    guesses, sure = np.array([3, 3, 5, 3, 5, 3]), np.array([0.6, 0.9, 0.7, 0.8, 0.7, 0.5])
    assert surest(guesses, sure, 0.5).tolist() == [1, 2, 3]  # two of four, one of two equal ones: the first
    assert surest(guesses, sure, 0.26).tolist() == [1, 2, 3]  # rounded up
    assert surest(guesses, sure, 1.0).tolist() == list(range(6))
    assert surest(guesses[:0], sure[:0], 0.5).tolist() == []


def test_only_views_that_agree_count():
    logits = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    classes = torch.tensor([1, 2, 0, 1, 3, 0])  # of images 0 and 2 the two views agree
    each = -logits.log_softmax(dim=1)[torch.arange(6), classes]
    found = agreed_loss(logits, classes)
    assert found.item() == pytest.approx(each[[0, 2, 3, 5]].mean().item(), rel=1e-6)
    never = agreed_loss(logits.requires_grad_(True), torch.tensor([0, 0, 0, 1, 1, 1]))
    never.backward()
    assert never.item() == 0 and not logits.grad.any()


def test_what_is_kept_are_the_surest_guesses_among_the_tasks_classes(scene):
    """One by one in double precision: never a labeled image, and never another label than the head's."""
    method, first = scene.method, scene.run.tasks[0]
    kept = dict(zip(method.kept.tolist(), method.kept_labels.tolist(), strict=True))
    network = methods.build(scene.run.config, scene.run.source.num_classes).network.double().eval()
    render = engine.set_up(scene.run, Stream(scene.run.source, scene.run.tasks), Memory(), 0).render
    guesses = {}
    for image in sorted(set(first.unlabeled.tolist()) - set(first.labeled.tolist())):
        with torch.no_grad():
            logits = network.head(network(render(plain_keys(np.array([image]))).double()).features)[0]
        among = logits[list(first.classes)].softmax(dim=0)
        guesses[image] = (first.classes[int(among.argmax())], float(among.max()))
    assert all(guesses[image][0] == label for image, label in kept.items())
    for label in first.classes:
        sure = sorted((certain for guess, certain in guesses.values() if guess == label), reverse=True)
        half = sure[: -(-len(sure) // 2)]
        ours = [guesses[image][1] for image, guess in kept.items() if guess == label]
        assert min(ours, default=1) >= half[-1] - 1e-6 if half else not ours
    available = [-(-sum(guess == label for guess, _ in guesses.values()) // 2) for label in sorted(first.classes)]
    counts = [list(kept.values()).count(label) for label in sorted(first.classes)]
    assert counts == replay.balanced_shares(available, 60) and sum(counts) == len(kept)


def test_a_step_shows_kept_images_class_by_class_and_others_stay_away(scene):
    labels = dict(zip(scene.method.kept.tolist(), scene.method.kept_labels.tolist(), strict=True))
    classes, shown = sorted(set(labels.values())), []
    for number in range(12):
        group = scene.method.draw(scene.setup.draws, Moment(0, 0, number, number))["kept"]
        assert len(group) == 7 and group.keys.kind == "support" and group.old.all()
        assert group.labels.tolist() == [labels[image] for image in group.keys.ids.tolist()]
        counts = [group.labels.tolist().count(label) for label in classes]
        assert max(counts) - min(counts) <= 1
        shown += group.keys.ids.tolist()
    assert len(set(shown)) > 30  # not the same ones again and again
    gone = np.setdiff1d(scene.run.tasks[0].unlabeled, np.concatenate([list(labels), scene.run.tasks[0].labeled]))[:1]
    with pytest.raises(Forbidden, match=f"{gone[0]} belongs to another task"):
        scene.setup.render(plain_keys(gone))


def test_guesses_weigh_as_their_classes_and_reach_the_backbone_like_labels(scene):
    """The head's losses by their definition, and their gradients: all of it at the head, lambda_LIN of it before."""
    method, task = scene.method.double(), scene.task
    scene.setup = scene.setup._replace(render=lambda keys, render=scene.setup.render: render(keys).double())
    step = scene.step(3)
    losses = method.losses(step)
    old = len(task.old) / len(task.seen)
    assert dict(losses.minimized) == {"snn": 1, "mem": 1, "lin": 1, "kept": old, "agree": pytest.approx(1 - old)}
    outputs = method.network(torch.cat([step.pixels[name] for name in ("large", "supports", "kept")]))
    features = outputs.features.detach().requires_grad_(True)
    logits = method.network.head(features)[:, list(task.seen)].log_softmax(dim=1)
    places = {label: place for place, label in enumerate(task.seen)}
    large, supports, kept = logits.split([len(step.batch[name]) for name in ("large", "supports", "kept")])

    def mean(rows, labels):
        return -torch.stack([row[places[int(label)]] for row, label in zip(rows, labels, strict=True)]).mean()

    guesses = [losses.among[place] for place in losses.guesses["large"].tolist()]
    half = len(guesses) // 2
    agree = [row for row in range(2 * half) if guesses[row] == guesses[(row + half) % (2 * half)]]
    assert 0 < len(agree) < len(guesses)
    expected = {
        "lin": mean(supports, step.batch["supports"].labels),
        "kept": mean(kept, step.batch["kept"].labels),
        "agree": mean(large[agree], [guesses[row] for row in agree]),
    }
    for name, value in expected.items():
        assert losses.parts[name].item() == pytest.approx(value.item(), rel=1e-6)
    found = method.head_losses(step, features, losses.guesses["large"])
    weight = method.network.head.weight
    ours = torch.autograd.grad(sum(w * loss for w, loss in found.values()), (features, weight))
    weights = {"lin": 1, "kept": old, "agree": 1 - old}
    theirs = torch.autograd.grad(sum(weights[name] * loss for name, loss in expected.items()), (features, weight))
    assert torch.allclose(ours[0], method.config.lambda_lin * theirs[0], rtol=1e-4, atol=1e-7)
    assert torch.allclose(ours[1], theirs[1], rtol=1e-4, atol=1e-7)


def test_without_guesses_it_is_nncsl(small, make_run):
    """Bit for bit in what is kept; in what is learned to rounding, as the head sees its rows in another way."""
    same = ("tasks=2", "epochs=1", "lambda_lin=0.1", "bank_codec=fp16", "unlabeled_batch=240")
    plain, known = engine.train(make_run(small("method=nncsl", *same), "plain"))
    bare = make_run(small("method=nncsl-plus", *same, "own.images=0", "own.agree=false"), "bare")
    found, state = engine.train(bare)
    assert not len(found.keeps()) and np.array_equal(state.memory.ids, known.memory.ids)
    for name, value in plain.network.state_dict().items():
        assert torch.allclose(found.network.state_dict()[name].float(), value.float(), rtol=1e-3, atol=1e-4), name


def test_later_tasks_take_room_and_guesses_stay_as_they_were_made(small, make_run, monkeypatch):
    end, after = NNCSLPlus.end, []

    def watched(self, task, memory, render):
        end(self, task, memory, render)
        after.append(dict(zip(self.kept.tolist(), self.kept_labels.tolist(), strict=True)))

    monkeypatch.setattr(NNCSLPlus, "end", watched)
    run = make_run(small("method=nncsl-plus", "tasks=5", "epochs=1", "unlabeled_batch=160", "own.images=50"))
    engine.train(run)
    labeled = np.concatenate([task.labeled for task in run.tasks])
    for index, kept in enumerate(after):
        assert len(kept) == 50 and not np.isin(list(kept), labeled).any()
        earlier = {image: label for image, label in kept.items() if label not in run.tasks[index].classes}
        assert all(after[index - 1][image] == label for image, label in earlier.items())
        assert bool(earlier) == (index > 0)
    truth = run.source.train_labels
    assert any(truth[image] != label for image, label in after[-1].items())  # guesses, not labels


def test_a_task_without_labels_leaves_what_is_kept(small, make_run):
    run = make_run(small(*SHORT, "labels=4/class,0%", "own.images=40"))
    method, _ = engine.train(run)
    assert len(method.keeps()) == 40 and set(method.kept_labels.tolist()) <= set(run.tasks[0].classes)


def test_stopped_at_any_step_it_ends_the_same(small, make_run, monkeypatch):
    expected, _ = engine.train(make_run(small(*SHORT, "own.images=40"), "whole"))
    method, _, calls = trained_in_pieces(make_run(small(*SHORT, "own.images=40"), "stopped"), monkeypatch)
    assert len(calls) >= 4 and fingerprint(method.state_dict()) == fingerprint(expected.state_dict())


@pytest.mark.parametrize(
    ("setting", "message"),
    [("own.sure=0", "own.sure=0.*: expected"), ("own.batch=0", "own.batch=0: expected 1 or more")],
)
def test_what_makes_no_sense_is_refused(small, setting, message):
    with pytest.raises(ConfigError, match=message):
        methods.build(small("method=nncsl-plus", setting), 10)
