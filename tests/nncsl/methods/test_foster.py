"""FOSTER: its losses by the formulas, what trains and what rests, and that two branches cost one's activations."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from nncsl import accounting, engine, methods, networks, objectives
from nncsl.batches import plain_keys
from nncsl.data.tasks import Stream
from nncsl.errors import ConfigError
from nncsl.featurebank import fingerprint
from nncsl.methods.foster import FOSTER, class_weights
from nncsl.replay import Memory
from tests.nncsl.scenes import SecondTask, trained_in_pieces

ORDER = "class_order=[3, 8, 1, 0, 9, 2, 7, 4, 6, 5]"
SETTINGS = ("method=foster", ORDER, "labeled_batch=9", "bank_support_views=3", "bank_codec=fp32")


def boosting(small, make_run, *settings, name="run"):
    """Task 2 where boosting has begun, after some training of the new branch; class 3 has one image left, not four."""
    scene = SecondTask(small(*SETTINGS, *settings), make_run, name)
    whole = scene.state.memory
    kept = np.concatenate([np.flatnonzero(whole.labels == 3)[:1], np.flatnonzero(whole.labels == 8)])
    scene.state.memory = Memory(whole.ids[kept], whole.labels[kept])
    scene.setup = engine.set_up(scene.run, Stream(scene.run.source, scene.run.tasks), scene.state.memory, 1)
    scene.task = scene.setup.task
    disturb(scene.network, scene.method.fc)
    return scene


def compressing(small, make_run, *settings, name="run"):
    """The same task where compression has begun."""
    scene = boosting(small, make_run, *settings, name=name)
    scene.phase = scene.method.phases(scene.task)[1]
    methods.begin(scene.method, 1, scene.phase, scene.task)
    scene.method.mode(scene.phase, scene.task)
    return scene


PHASES = {"boost": boosting, "compress": compressing}


def disturb(*modules):
    """Change weights as a few steps would."""
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in (p for module in modules for p in module.parameters()):
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=noise))


def look(scene, teacher, step=0, pool=None):
    """A step of the scene in its method's precision."""
    dtype = next(scene.method.parameters()).dtype
    setup = scene.setup._replace(render=lambda keys: scene.setup.render(keys).to(dtype))
    now = scene.now(0, step, pool)
    return engine.look(scene.method, setup, scene.phase, now, teacher, scene.network)


def log_softmax(row, temperature=1.0):
    total = math.log(sum(math.exp(z / temperature) for z in row))
    return [z / temperature - total for z in row]


def naive_weights(counts, beta):
    raw = [(1 - beta) / (1 - beta**n) for n in counts]
    return [len(raw) * value / sum(raw) for value in raw]


def logits_of(layer, features, classes):
    """A linear layer by hand: one list of logits, in the order of ``classes``, for every row of features."""
    weight, bias = layer.weight.tolist(), layer.bias.tolist()
    return [[sum(f * w for f, w in zip(row, weight[c], strict=True)) + bias[c] for c in classes] for row in features]


def test_boosting_minimizes_the_formula(small, make_run):
    """CE(z / w) + CE(aux) + KD: logits are divided by w in the first term and nowhere else."""
    scene = boosting(small, make_run)
    method = scene.method.double()
    step = look(scene, scene.teacher("model"))
    found = method.losses(step)

    pixels, labels = step.pixels["labeled"], step.labels("labeled").tolist()
    seen, past = [3, 8, 1, 0], [3, 8]
    new = method.network(pixels).features.tolist()
    old = method.other(pixels).features.tolist()
    both = [a + b for a, b in zip(old, new, strict=True)]
    w = naive_weights([1, 4, 4, 4], 0.96)
    assert w[0] > 1.5 > 1 > w[1]  # so that it matters where logits are divided
    boost = aux = kd = 0.0
    rows = zip(
        logits_of(method.fc, both, seen),
        logits_of(method.aux, new, seen),
        logits_of(method.other.head, old, past),
        labels,
        strict=True,
    )
    for z, z_aux, z_old, label in rows:
        boost -= log_softmax([a / b for a, b in zip(z, w, strict=True)])[seen.index(label)]
        aux -= log_softmax(z_aux)[seen.index(label)]
        kd -= sum(math.exp(b) * a for a, b in zip(log_softmax(z[:2], 2), log_softmax(z_old, 2), strict=True))
    expected = {"boost": boost / len(labels), "aux": aux / len(labels), "kd": kd / len(labels)}
    assert {name: part.item() for name, part in found.parts.items()} == pytest.approx(expected, rel=1e-5)
    assert found.total.item() == pytest.approx(sum(expected.values()), rel=1e-5)


def test_compression_minimizes_the_formula(small, make_run):
    """-sum q log softmax(z_S / 2), q proportional to w' softmax(z_T / 2); labels are not used."""
    scene = compressing(small, make_run)
    method = scene.method.double()
    step = look(scene, scene.teacher("model"))
    disturb(method.network)
    found = method.losses(step)

    pixels, seen = step.pixels["labeled"], [3, 8, 1, 0]
    teacher = step.targets["labeled"].tolist()
    student = logits_of(method.network.head, method.network(pixels).features.tolist(), seen)
    w = naive_weights([1, 4, 4, 4], 0.97)
    expected = 0.0
    for z, z_teacher in zip(student, teacher, strict=True):
        q = [b * math.exp(p) for b, p in zip(w, log_softmax(z_teacher, 2), strict=True)]
        expected -= sum(p / sum(q) * a for p, a in zip(q, log_softmax(z, 2), strict=True))
    assert set(found.parts) == {"compress"}
    assert found.total.item() == pytest.approx(expected / len(student), rel=1e-5)

    hidden = replace(step.batch["labeled"], labels=step.batch["labeled"].labels.flip(0))
    assert torch.equal(method.losses(step._replace(batch={"labeled": hidden})).total, found.total)


def test_weights_of_classes():
    assert class_weights(torch.full((7,), 40), 0.96).numpy() == pytest.approx(1, abs=1e-12)
    assert class_weights(torch.tensor([3, 900, 20]), 0.0).numpy() == pytest.approx(1, abs=1e-12)
    assert class_weights(torch.tensor([1, 2]), 0.5).tolist() == pytest.approx([1.2, 0.8])  # 1 and 2/3, mean 5/6
    rare = class_weights(torch.tensor([5, 20, 20]), 0.96)
    assert rare[0] > 1 > rare[1] and rare.sum() == pytest.approx(3)
    assert class_weights(torch.tensor([0, 2]), 0.5).tolist() == pytest.approx([1.2, 0.8])  # without a memory


@pytest.mark.parametrize(("task", "beta"), [(1, 0.5), (2, 0.9), (3, 0.99), (4, 0.99)])
def test_every_task_has_its_beta(small, make_run, task, beta):
    scene = boosting(small, make_run, "own.betas=[0.5, 0.9, 0.99]")
    step = look(scene, scene.teacher("model"))
    found = scene.method.losses(step._replace(task=replace(step.task, index=task))).parts["boost"]
    scene.method.own = replace(scene.method.own, betas=(beta,))
    assert torch.equal(found, scene.method.losses(step).parts["boost"])
    scene.method.own = replace(scene.method.own, betas=(0.7,))
    assert not torch.equal(found, scene.method.losses(step).parts["boost"])


def test_the_published_betas_of_cifar100(small):
    betas = small("method=foster", "dataset=cifar100").own["betas"]
    assert betas == pytest.approx(np.linspace(0.98, 0.94, 9)) and small("method=foster").own["betas"] == [0.96]


@pytest.mark.parametrize("phase", PHASES)
def test_features_and_model_give_the_same_losses(small, make_run, phase):
    """Of a student that has moved on, whichever way its teacher answers."""
    scene = PHASES[phase](small, make_run)
    bank, model = scene.teacher("features"), scene.teacher("model")
    disturb(scene.network)
    for step in range(4):
        of_bank, of_model = (look(scene, teacher, step, bank.pool(0)) for teacher in (bank, model))
        assert len(of_bank.targets["labeled"]) == len(of_bank.batch["labeled"]) == 9
        found, expected = (scene.method.losses(seen).parts for seen in (of_bank, of_model))
        assert {name: part.item() for name, part in found.items()} == pytest.approx(
            {name: part.item() for name, part in expected.items()}, rel=1e-5
        )
    bank.close()


@pytest.mark.parametrize("phase", PHASES)
def test_refreshed_views_are_answered_by_the_same_teacher(small, make_run, phase):
    scene = PHASES[phase](small, make_run, "epochs=8", "bank_refresh_epochs=1")
    bank, model = scene.teacher("features"), scene.teacher("model")
    disturb(scene.network)
    pool = bank.pool(1)
    assert pool.replaced == 1
    found, expected = (look(scene, teacher, 0, pool).targets["labeled"] for teacher in (bank, model))
    assert found.numpy() == pytest.approx(expected.numpy(), rel=1e-4, abs=1e-5)
    bank.close()


def test_the_wide_head_knows_what_the_old_head_knew(small, make_run):
    scene = SecondTask(small(*SETTINGS), make_run)
    head, fc = scene.network.head, scene.method.fc
    size, old = head.in_features, list(scene.task.old)
    assert fc.weight.shape == (10, 2 * size)
    assert torch.equal(fc.weight[old, :size], head.weight[old]) and torch.equal(fc.bias[old], head.bias[old])
    assert not torch.isin(fc.weight[old, size:], head.weight).any()
    assert not torch.isin(fc.weight[list(scene.task.classes)], head.weight).any()
    assert not torch.isin(scene.method.aux.weight, torch.cat([head.weight.flatten(), fc.weight.flatten()])).any()


def test_the_student_starts_as_the_old_network(small, make_run):
    """Its first logits for past classes are the old head's, bit for bit; the two branches' are others."""
    scene = SecondTask(small(*SETTINGS), make_run)
    images = scene.setup.render(plain_keys(scene.task.labeled))
    method, old = scene.method, list(scene.task.old)
    with networks.evaluating(method):
        before = networks.head_logits(method.network, images)
    disturb(method.network, method.fc)
    with networks.evaluating(method):
        features = torch.cat([net(images).features for net in (method.other, method.network)], dim=1)
        both, predicted = method.fc(features), method.predict(images)
        assert torch.equal(predicted[:, list(scene.task.seen)], both[:, list(scene.task.seen)])
    methods.begin(method, 1, method.phases(scene.task)[1], scene.task)
    with networks.evaluating(method):
        student = method.predict(images)
        asked = method.asks(method.phases(scene.task)[1], scene.task, scene.state.memory)["labeled"]
        assert torch.equal(asked.answer(method, images), both[:, list(scene.task.seen)])
    assert torch.equal(student[:, old], before[:, old]) and not torch.allclose(student[:, old], both[:, old])
    unseen = [c for c in range(10) if c not in scene.task.seen]
    assert torch.isneginf(student[:, unseen]).all() and torch.isneginf(predicted[:, unseen]).all()
    assert student[:, list(scene.task.seen)].isfinite().all()


def test_what_rests_and_what_trains(small, make_run, monkeypatch):
    """Every step of a run: the old branch stays as it was, statistics too, and then is where the student starts."""
    states = {}
    losses = FOSTER.losses

    def noting(self, step):
        if step.phase.name != "train":
            states.setdefault((step.task.index, step.phase.name), []).append(
                (fingerprint(self.network.state_dict()), fingerprint(self.other.state_dict()))
            )
            assert not any(module.training for module in self.other.modules())
            assert all(module.training for module in self.network.modules())
            assert not any(p.requires_grad for p in self.other.parameters())
            assert all(p.requires_grad for p in self.network.parameters())
        return losses(self, step)

    monkeypatch.setattr(FOSTER, "losses", noting)
    method, state = engine.train(make_run(small("method=foster", "unlabeled_batch=100")))
    assert sorted(states) == [(task, phase) for task in range(1, 5) for phase in ("boost", "compress")]
    for task in range(1, 5):
        boost, compress = states[task, "boost"], states[task, "compress"]
        old = boost[0][0]
        assert {other for _, other in boost} == {old} and len({network for network, _ in boost}) == len(boost) > 1
        assert compress[0][0] == old and len({network for network, _ in compress}) == len(compress) > 1
        assert len({other for _, other in compress}) == 1 and compress[0][1] not in (old, boost[-1][0])
    # The two branches were measured before each compression, the compressed network after it, unseen classes never.
    assert len(state.extra["two_branch_accuracy"]) == 4 and state.ahead == [None] * 4
    assert state.extra["two_branch_accuracy"] != state.seen_accuracy[1:]
    # Both networks were counted, the gradients of one.
    size, heads = networks.nbytes(method.network), networks.nbytes(method.fc)
    assert state.peak_memory["student"] >= 2 * size + heads
    assert state.peak_memory["gradients"] <= size + 2 * heads
    assert state.peak_memory["teacher"] == 0 < state.peak_memory["bank"]


@pytest.mark.parametrize(("phase", "decay"), [("boost", 5e-4), ("compress", 0.0)])
def test_the_optimizer_has_what_trains(small, make_run, phase, decay):
    scene = SecondTask(small(*SETTINGS), make_run)
    phases = scene.method.phases(scene.task)
    number = [p.name for p in phases].index(phase)
    for earlier in range(number + 1):
        (optimizer,) = methods.begin(scene.method, earlier, phases[earlier], scene.task)
    (group,) = optimizer.param_groups
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.1, 0.9, decay)
    method = scene.method
    trained = (method.network, method.fc, method.aux) if phase == "boost" else (method.network,)
    assert {id(p) for p in group["params"]} == {id(p) for module in trained for p in module.parameters()}
    assert [phases[number].rate(part) for part in (0.0, 0.5, 1.0)] == pytest.approx([1, 0.5, 0])


@pytest.mark.parametrize("phase", PHASES)
def test_one_network_has_activations(small, make_run, phase):
    """A step's look and losses never pass through the other network, and hold no more than plain training would."""
    scene = PHASES[phase](small, make_run, "labeled_batch=16")
    teacher = scene.teacher("features")
    passed = []
    for name in ("network", "other"):
        getattr(scene.method, name).register_forward_hook(lambda *_, name=name: passed.append(name))
    with accounting.saved_activations(scene.method) as used:
        step = look(scene, teacher, 0, teacher.pool(0))
        scene.method.losses(step)
    assert passed == ["network"]
    teacher.close()
    with accounting.saved_activations(scene.method) as plain:
        features = scene.network(step.pixels["labeled"]).features
        objectives.lin_loss(scene.network.head(features), step.labels("labeled"))
    assert 0.9 * plain.peak < used.peak < 1.2 * plain.peak


@pytest.mark.parametrize("epochs", [1, 2, 20, 40, 250])
@pytest.mark.parametrize("steps", [4, 9, 39])
def test_phases_share_a_tasks_steps(small, make_run, epochs, steps):
    scene = SecondTask(small("method=foster"), make_run)
    scene.method.config = replace(scene.config, epochs=epochs)
    first = scene.method.phases(replace(scene.task, old=(), steps=steps))
    assert [(p.name, p.epochs, p.steps) for p in first] == [("train", epochs, steps)]
    boost, compress = scene.method.phases(replace(scene.task, steps=steps))
    assert (boost.name, compress.name) == ("boost", "compress")
    assert boost.epochs * boost.steps == pytest.approx(epochs * steps * 170 / 300, abs=boost.epochs / 2)
    assert compress.epochs * compress.steps == pytest.approx(epochs * steps * 130 / 300, abs=compress.epochs / 2)


@pytest.mark.parametrize("selection", ["herding", "random"])
def test_the_memory_is_herded_by_backbone_features(small, make_run, selection):
    given = () if selection == "herding" else ("memory_selection=random",)
    scene = boosting(small, make_run, *given)
    method, task = scene.method, scene.task
    with networks.evaluating(method):
        plain = lambda ids: scene.setup.render(plain_keys(ids))  # noqa: E731
        rank = method.rank(task, scene.state.memory, lambda ids, answer: answer(method, plain(ids)))
        for label in task.classes:
            ids = task.labeled[task.labels == label]
            features = method.network(plain(ids)).features.double()
            unit = features / features.norm(dim=1, keepdim=True)
            chosen, mean = [], unit.mean(dim=0)
            while len(chosen) < len(ids):
                left = [k for k in range(len(ids)) if k not in chosen]
                far = [(mean - unit[[*chosen, k]].mean(dim=0)).norm().item() for k in left]
                chosen.append(left[int(np.argmin(far))])
            same = rank(label, ids).tolist() == ids[chosen].tolist()
            assert sorted(rank(label, ids)) == sorted(ids) and same == (selection == "herding")
    kept = scene.state.memory.ids[scene.state.memory.labels == 8][::-1]
    assert selection == "random" or rank(8, kept).tolist() == kept.tolist()  # old classes keep their order


@pytest.mark.parametrize("mode", ["features", "model"])
def test_stopped_at_any_step_it_ends_the_same(small, make_run, monkeypatch, mode):
    """In the middle of boosting, in the middle of compression, and between them, over several swaps."""
    settings = (*SETTINGS, f"teacher_mode={mode}", "unlabeled_batch=100", "labels=2/class", "memory=12")
    expected, state = engine.train(make_run(small(*settings), "whole"))
    method, resumed, places = trained_in_pieces(make_run(small(*settings), "stopped"), monkeypatch, tasks=(1, 3))
    calls = [place[:2] for place in places]
    assert all(calls.count((task, phase)) == 2 for task in range(1, 5) for phase in ("boost", "compress"))
    assert fingerprint(method.state_dict()) == fingerprint(expected.state_dict())
    assert resumed.accuracy_matrix == state.accuracy_matrix and resumed.extra == state.extra


def test_without_a_teacher_it_is_refused(small):
    with pytest.raises(ConfigError, match=r"teacher_mode='none'.*--teacher-mode features or model"):
        methods.build(small("method=foster", "teacher_mode=none"), 10)
    methods.build(small("method=foster", "teacher_mode=none", "tasks=1"), 10)  # nothing old in one task


@pytest.mark.parametrize("setting", ["own.betas=[]", "own.betas=[0.9, 1.0]", "own.compression_beta=-0.1"])
def test_betas_are_checked(small, setting):
    with pytest.raises(ConfigError, match=r"own\.(betas|compression_beta)=.*from 0 to under 1"):
        small("method=foster", setting)


def test_it_runs_without_a_memory(small, make_run):
    """Past classes then have no images, and logits are still divided by something."""
    _, state = engine.train(make_run(small("method=foster", "memory=0", "tasks=2", "unlabeled_batch=160")))
    assert not len(state.memory.ids) and len(state.accuracy_matrix) == 2
