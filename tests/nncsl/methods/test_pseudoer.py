"""PseudoER: its labeler is PAWS, its learner is ER, and nothing but guessed labels goes from one to the other."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from nncsl import engine, methods, networks, replay
from nncsl.batches import Moment, plain_keys
from nncsl.data.tasks import Forbidden, Stream
from nncsl.errors import ConfigError
from nncsl.featurebank import fingerprint
from nncsl.methods.guesses import best_class
from nncsl.methods.pseudoer import PseudoER, task_images
from nncsl.methods.supervised import ER
from nncsl.replay import Memory
from nncsl.teachers import Teacher
from tests.nncsl.scenes import trained_in_pieces

SHORT = ("tasks=2", "epochs=1", "memory=24", "unlabeled_batch=120")


class LearnerScene:
    """Digits at the start of task 2's second phase, the labeler partly wrong, the learner with a memory of task 1."""

    def __init__(self, loaded, make_run):
        self.run = make_run(loaded)
        self.method = methods.build(loaded, self.run.source.num_classes)
        stream = Stream(self.run.source, self.run.tasks)
        memory = Memory(self.run.tasks[0].labeled, self.run.tasks[0].labels)
        for index in range(2):
            self.setup = engine.set_up(self.run, stream, memory if index else Memory(), index, self.method.keeps())
            self.task = self.setup.task
            for number, phase in enumerate(self.method.phases(self.task)):
                self.phase = phase
                methods.begin(self.method, number, phase, self.task)
                with networks.evaluating(self.method):
                    self.method.prepare(phase, self.task, memory, self.setup.render)
            if not index:
                with networks.evaluating(self.method):
                    self.method.end(self.task, memory, self.setup.render)
        self.method.mode(self.phase, self.task)


@pytest.fixture
def scene(small, make_run):
    return LearnerScene(small("method=pseudoer", "tasks=5", "memory=24"), make_run)


@pytest.mark.parametrize("selection", ["random", "herding"])
def test_the_labeler_is_paws_bit_for_bit(small, make_run, selection):
    """Its weights, its memory and what it scores: the learner leaves no trace in it."""
    settings = (*SHORT, f"memory_selection={selection}")
    paws, alone = engine.train(make_run(small("method=paws", *settings), "paws"))
    both, state = engine.train(make_run(small("method=pseudoer", *settings), "both"))
    assert fingerprint(both.resting.state_dict()) == fingerprint(paws.network.state_dict())
    assert np.array_equal(state.memory.ids, alone.memory.ids)
    assert state.extra["labeler_accuracy"] == alone.seen_accuracy != state.seen_accuracy


def test_told_the_truth_the_learner_is_er_on_a_fully_labeled_stream(small, make_run, monkeypatch):
    """Bit for bit, over two tasks: weights, memory and accuracies of the ER that the project has."""
    told = make_run(small(*SHORT, "method=pseudoer"), "told")
    started = methods.build(told.config, told.source.num_classes).network.state_dict()

    def tell(self, phase, task, memory, render):
        if phase.name == "er":
            self.labels = torch.from_numpy(told.source.train_labels[task_images(task)])

    class SecondPhaseER(ER):
        """ER with PseudoER's first weights, and random numbers of a second phase: nothing happens in the first."""

        def __init__(self, network, config, own):
            super().__init__(network, config, own)
            self.network.load_state_dict(started)

        def phases(self, task):
            return [super().phases(task)[0]._replace(epochs=0), *super().phases(task)]

    monkeypatch.setattr(PseudoER, "prepare", tell)
    monkeypatch.setitem(methods.METHODS, "second-phase-er", SecondPhaseER)
    found, measured = engine.train(told)
    settings = ("method=second-phase-er", "labels=100%", "batchnorm=train")
    expected, known = engine.train(make_run(small(*SHORT, *settings), "er"))
    assert fingerprint(found.network.state_dict()) == fingerprint(expected.network.state_dict())
    assert dict(zip(found.kept.tolist(), found.kept_labels.tolist(), strict=True)) == dict(
        zip(known.memory.ids.tolist(), known.memory.labels.tolist(), strict=True)
    )
    assert measured.accuracy_matrix == known.accuracy_matrix


def test_guesses_are_the_labelers_among_the_current_classes(scene):
    """One by one in double precision; true labels stay, also where the labeler is wrong."""
    task, labels = scene.task, scene.method.labels.tolist()
    labeler = scene.method.resting.double().eval()
    truth = dict(zip(task.labeled.tolist(), task.labels.tolist(), strict=True))
    ids = sorted(set(task.unlabeled.tolist()) | set(truth))
    assert len(labels) == len(ids)
    corrected = beaten = 0
    for image, label in zip(ids, labels, strict=True):
        pixels = scene.setup.render(plain_keys(np.array([image]))).double()
        with torch.no_grad():
            logits = labeler.head(labeler(pixels).features)[0].tolist()
        guess = max(task.classes, key=lambda c: logits[c])
        assert label == truth.get(image, guess)
        corrected += guess != label
        beaten += max(logits) > logits[guess]
    assert corrected and beaten  # true labels and other classes matter here


def test_best_class_by_hand():
    logits = torch.tensor([[9.0, 1.0, 2.0, 3.0], [9.0, 4.0, 2.0, 3.0], [0.0, 0.0, 1.0, 9.0]])
    labels, sure = best_class(logits, (2, 1))
    assert labels.tolist() == [2, 1, 2] and torch.allclose(sure, logits[:, [2, 1]].softmax(dim=1).max(dim=1).values)


def test_the_learners_loss_is_one_mean_of_cross_entropies_over_seen_classes(scene):
    """Naively, in double precision, over a batch of the stream and one of the memory in one pass."""
    method, task, source = scene.method.double(), scene.task, scene.run.source
    setup = scene.setup._replace(render=lambda keys: scene.setup.render(keys).double())
    step = engine.look(method, setup, scene.phase, Moment(1, 0, 3, 3), Teacher(), method.network)
    group = step.batch["labeled"]
    assert len(group) == 32 + 24 and list(step.batch) == ["labeled"] and group.keys.kind == "weak"
    assert np.isin(group.keys.ids[:32], task_images(task)).all() and len(np.unique(group.keys.ids)) == 56
    assert sorted(group.keys.ids[32:]) == method.kept.tolist() and group.old.tolist() == [False] * 32 + [True] * 24
    labels = dict(zip(task_images(task).tolist(), method.labels.tolist(), strict=True))
    labels |= dict(zip(method.kept.tolist(), method.kept_labels.tolist(), strict=True))
    wrong = sum(labels[image] != source.train_labels[image] for image in group.keys.ids)
    assert wrong  # of an untrained labeler: the labels are its guesses

    head, each = method.network.head.requires_grad_(False), []
    for row, image in zip(method.network(step.pixels["labeled"]).features.detach(), group.keys.ids, strict=True):
        scores = {c: float(head.weight[c] @ row + head.bias[c]) for c in task.seen}
        each.append(np.log(sum(np.exp(score) for score in scores.values())) - scores[labels[int(image)]])
    losses = method.losses(step)
    assert losses.total.item() == pytest.approx(np.mean(each), rel=1e-6)
    assert losses.guesses["labeled"].tolist() == [labels[int(image)] for image in group.keys.ids]


def test_every_step_draws_uniformly_from_the_whole_stream(scene):
    images, counts = task_images(scene.task), np.zeros(len(scene.run.source.train_labels))
    for step in range(400):
        np.add.at(counts, scene.method.draw(scene.setup.draws, Moment(1, 0, step, step))["labeled"].keys.ids[:32], 1)
    expected = 400 * 32 / len(images)
    assert counts[images].sum() == 400 * 32 and abs(counts[images] - expected).max() < 6 * np.sqrt(expected)


def test_no_hidden_label_is_read(small, make_run, monkeypatch):
    """The look-up raises; only the curve's own door is left, and lies. What is learned stays the same."""
    settings = (*SHORT, "method=pseudoer")
    expected, _ = engine.train(make_run(small(*settings), "open"))

    class Hidden(np.ndarray):
        def __getitem__(self, ids):
            raise AssertionError(f"the labels of {ids} were read")

    prepared = make_run(small(*settings), "hidden")
    blind = replace(prepared.source, train_labels=prepared.source.train_labels.view(Hidden))
    with pytest.raises(AssertionError, match="were read"):
        engine.train(replace(prepared, source=blind))  # for the curve
    monkeypatch.setattr(Stream, "monitor", lambda self, ids: np.zeros(len(ids), np.int64))
    found, _ = engine.train(replace(prepared, source=blind))
    assert fingerprint(found.state_dict()) == fingerprint(expected.state_dict())


def test_the_learners_memory_keeps_guesses_balanced_and_each_image_once(small, make_run, monkeypatch):
    end, offered, after = PseudoER.end, [], []

    def watched(self, task, memory, render):
        offered.append(dict(zip(task_images(task).tolist(), self.labels.tolist(), strict=True)))
        end(self, task, memory, render)
        after.append(dict(zip(self.kept.tolist(), self.kept_labels.tolist(), strict=True)))
        assert len(after[-1]) == len(self.kept) and not len(self.labels)

    monkeypatch.setattr(PseudoER, "end", watched)
    prepared = make_run(small("method=pseudoer", "tasks=5", "epochs=1", "memory=50", "unlabeled_batch=160"))
    _, state = engine.train(prepared)
    for index, kept in enumerate(after):
        known = {**(after[index - 1] if index else {}), **offered[index]}
        assert len(kept) == 50 and all(known[image] == label for image, label in kept.items())
        classes = [label for task in prepared.tasks[: index + 1] for label in task.classes]
        available = [sum(label == c for label in known.values()) for c in sorted(classes)]
        counts = [sum(label == c for label in kept.values()) for c in sorted(classes)]
        assert counts == replay.balanced_shares(available, 50)
    truth = prepared.source.train_labels
    wrong = [image for image, label in after[-1].items() if truth[image] != label]
    labeled = np.concatenate([task.labeled for task in prepared.tasks])
    assert wrong and not np.isin(wrong, labeled).any()  # guesses, as they were made
    assert len(state.memory.ids) == 40 and np.isin(state.memory.ids, labeled).all()  # the labeler's own: true labels


def test_what_it_keeps_is_seen_again_and_nothing_else_of_earlier_tasks(scene):
    kept, first = scene.method.keeps(), task_images(scene.run.tasks[0])
    assert len(kept) == 24 and not np.isin(kept, scene.run.tasks[0].labeled).all()
    scene.setup.render(plain_keys(kept))
    gone = np.setdiff1d(first, np.concatenate([kept, scene.run.tasks[0].labeled]))[:1]
    with pytest.raises(Forbidden, match=f"{gone[0]} belongs to another task"):
        scene.setup.render(plain_keys(gone))
    drawn = [scene.setup.draws.unlabeled(Moment(0, 0, step, step))[0] for step in range(scene.task.steps)]
    assert not np.isin(np.concatenate(drawn), kept).any()  # the labeler does not get them


def test_stopped_at_any_step_it_ends_the_same_and_prepares_each_phase_once(small, make_run, monkeypatch):
    settings = ("method=pseudoer", "tasks=2", "epochs=1", "unlabeled_batch=240", "memory=24")
    expected, _ = engine.train(make_run(small(*settings), "whole"))
    prepare, looks = PseudoER.prepare, []

    def counted(self, phase, task, memory, render):
        assert not self.training and not torch.is_grad_enabled()
        looks.append((task.index, phase.name))
        prepare(self, phase, task, memory, render)

    monkeypatch.setattr(PseudoER, "prepare", counted)
    method, _, calls = trained_in_pieces(make_run(small(*settings), "stopped"), monkeypatch)
    phases = [(task, phase) for task in range(2) for phase in ("paws", "er")]
    assert looks == phases and calls == [(*place, number) for place in phases for number in range(len(calls) // 4)]
    assert len(calls) >= 8
    assert fingerprint(method.state_dict()) == fingerprint(expected.state_dict())


@pytest.mark.parametrize("batchnorm", ["freeze-after-first", "train"])
def test_each_network_has_its_own_batchnorm_optimizer_and_turn(small, make_run, batchnorm):
    run = make_run(small("method=pseudoer", "tasks=5", f"batchnorm={batchnorm}"))
    method = methods.build(run.config, run.source.num_classes)
    learner, labeler = method.network, method.resting
    assert fingerprint(learner.state_dict()) != fingerprint(labeler.state_dict())
    task = replace(run.tasks[1], steps=3)
    phases = method.phases(task)
    assert [(phase.name, phase.epochs, phase.steps) for phase in phases] == [("paws", 2, 3), ("er", 2, 3)]
    assert [phase.rate(0) for phase in phases] == [pytest.approx(0.005 / 0.03), 1.0]
    for number, (phase, network, frozen) in enumerate(
        [(phases[0], labeler, batchnorm != "train"), (phases[1], learner, False)]
    ):
        (optimizer,) = methods.begin(method, number, phase, task)
        method.mode(phase, task)
        assert method.network is network and network.training and not method.resting.training
        assert network.stem[1].training is not frozen
        trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
        assert trained == {id(p) for p in network.parameters()}
    assert [optimizer.param_groups[0][key] for key in ("lr", "momentum", "weight_decay")] == [0.1, 0, 0]


def test_both_networks_and_the_learners_memory_are_accounted_for(small, make_run):
    prepared = make_run(small(*SHORT, "method=pseudoer"))
    method, state = engine.train(prepared)
    parameters = sum(p.numel() * p.element_size() for p in method.network.parameters())
    assert state.peak_memory["gradients"] == parameters  # of one at a time
    assert len(method.kept) == len(method.kept_labels) == 24
    labels = [len(task_images(task)) for task in prepared.tasks]  # and from task 2 on 24 images with theirs
    buffers = 8 * max(labels[0], 2 * 24 + labels[1])
    assert state.peak_memory["student"] == 2 * networks.nbytes(method.network) + buffers


def test_recalibration_is_refused(small):
    with pytest.raises(ConfigError, match="batchnorm_recalibrate=True: pseudoer has two networks"):
        methods.build(small("method=pseudoer", "batchnorm_recalibrate=true"), 10)
