"""The bank stands in for the teacher network: same answers, same losses, same gradients, and no second network."""

import copy
import gc

import pytest
import torch

from nncsl import engine, methods, optim
from nncsl.batches import LABELED_VIEWS
from nncsl.data import policy
from nncsl.errors import UserError
from nncsl.featurebank import FeatureBank, fingerprint
from nncsl.networks import Network
from nncsl.teachers.bank import BankTeacher
from tests.nncsl.scenes import SecondTask


def nnd_gradient(scene, teacher, pool):
    """The largest entry of L_NND's gradient at the task's first step."""
    scene.method.zero_grad()
    scene.losses(scene.method, teacher, pool=pool).parts["nnd"].backward()
    return max(p.grad.abs().max().item() for p in scene.method.parameters() if p.grad is not None)


def train_both(scene, codec_bound):
    """A whole task twice, from the bank and from a copied network; every loss and gradient is compared."""
    bank_teacher = scene.teacher("features")
    pool = bank_teacher.pool(0)
    sides = []
    for teacher in (bank_teacher, scene.teacher("model")):
        method = copy.deepcopy(scene.method)
        sides.append((method, teacher, method.begin(scene.phase, scene.task)))
    worst = 0.0
    for epoch in range(scene.config.epochs):
        for step in range(scene.task.steps):
            both = []
            for method, teacher, optimizers in sides:
                optim.set_rates(optimizers, scene.phase.rate(scene.phase.progress(scene.now(epoch, step))))
                losses = scene.losses(method, teacher, epoch, step, pool)
                method.zero_grad()
                losses.total.backward()
                gradient = torch.cat([p.grad.flatten() for p in method.parameters() if p.grad is not None])
                both.append((losses, gradient))
                optimizers[0].step()
            (a, ga), (b, gb) = both
            for name in a.parts:
                assert a.parts[name].item() == pytest.approx(b.parts[name].item(), rel=codec_bound, abs=codec_bound)
            worst = max(worst, ((ga - gb).norm() / gb.norm()).item())
    bank_teacher.close()
    return worst


@pytest.mark.parametrize(
    ("codec", "loss_bound", "gradient_bound"),
    [("fp32", 1e-5, 1e-4), ("fp16", 1e-3, 1e-2), ("int8", 1e-2, 0.1), ("int4", 1e-2, 0.05)],
)
def test_features_and_model_train_alike_over_a_whole_task(small, make_run, codec, loss_bound, gradient_bound):
    scene = SecondTask(small("epochs=3", f"bank_codec={codec}"), make_run)
    assert train_both(scene, loss_bound) < gradient_bound


@pytest.mark.parametrize("distillation", ["kd", "feature"])
def test_other_distillations_also_run_from_stored_answers(small, make_run, distillation):
    scene = SecondTask(small("bank_codec=fp32", f"distillation={distillation}"), make_run)
    assert train_both(scene, 1e-5) < 1e-4


@pytest.mark.parametrize("mode", ["features", "model"])
def test_with_frozen_batchnorm_distillation_starts_with_gradient_zero(small, make_run, mode):
    """The student is the teacher at the first step, so the loss is the teacher's entropy: a minimum."""
    scene = SecondTask(small("bank_codec=fp32", f"teacher_mode={mode}"), make_run)
    teacher = scene.teacher()
    pool = teacher.pool(0)
    at_first = nnd_gradient(scene, teacher, pool)
    with torch.no_grad():
        for p in scene.network.projector.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=torch.Generator().manual_seed(0)))
    assert at_first < 1e-7
    assert nnd_gradient(scene, teacher, pool) > 1e3 * at_first  # and it is not zero for want of a signal
    teacher.close()


def test_training_batchnorm_moves_the_student_away_from_its_teacher(small, make_run):
    scene = SecondTask(small("bank_codec=fp32", "batchnorm=train"), make_run)
    teacher = scene.teacher()
    assert nnd_gradient(scene, teacher, teacher.pool(0)) > 1e-3
    teacher.close()


def parameters_alive():
    networks_alive = [o for o in gc.get_objects() if type(o) is Network]
    return sum(p.numel() for network in networks_alive for p in network.parameters())


@pytest.mark.parametrize(("mode", "alive"), [("features", 1), ("model", 2), ("none", 1)])
def test_how_many_networks_are_alive_while_a_task_trains(small, make_run, monkeypatch, mode, alive):
    """Counted where the losses are computed: every Network object that the interpreter can still reach."""
    run = make_run(small(f"teacher_mode={mode}", "epochs=1", "unlabeled_batch=200"))  # a step in each task
    counts = []
    losses = methods.METHODS["nncsl"].losses

    def counting(self, *arguments):
        gc.collect()
        counts.append(parameters_alive())
        return losses(self, *arguments)

    gc.collect()
    before = parameters_alive()
    monkeypatch.setattr(methods.METHODS["nncsl"], "losses", counting)
    method, _ = engine.train(run)
    size = sum(p.numel() for p in method.parameters())
    assert counts[0] - before == size  # the first task has no teacher
    assert counts[-1] - before == alive * size


def test_each_task_has_its_own_generation_and_only_the_last_is_kept(small, make_run, monkeypatch):
    run = make_run(small("epochs=1"))
    seen = []
    targets = BankTeacher.targets

    def noting(self, batch, pixels, asked):
        if not self._asks:
            return targets(self, batch, pixels, asked)
        manifest = self._bank.manifest
        seen.append((manifest.task, manifest.generation, manifest.teacher, len(self._bank.generations)))
        return targets(self, batch, pixels, asked)

    monkeypatch.setattr(BankTeacher, "targets", noting)
    engine.train(run)
    by_task = {task: {entry[1:3] for entry in seen if entry[0] == task} for task, *_ in seen}
    assert sorted(by_task) == [1, 2, 3, 4]
    assert all(len(entries) == 1 for entries in by_task.values())  # one generation, one teacher per task
    assert len({next(iter(entries)) for entries in by_task.values()}) == 4
    assert {entry[3] for entry in seen} == {1}  # older generations are gone while a task trains
    with FeatureBank.open(run.folder / "bank") as bank:
        last = run.tasks[-1]
        keys = bank.keys("unlabeled")[0]
        assert set(keys.tolist()) == set(last.unlabeled.tolist())


def test_refreshed_pools_come_from_the_old_teacher(small, make_run, monkeypatch):
    """Every second epoch a new pool is swept with the teacher's weights from disk; the student is unharmed."""
    run = make_run(small("epochs=4", "bank_refresh_epochs=2", "tasks=2", "labels=2/class", "memory=10"))
    seen = []
    sweep = BankTeacher._sweep

    def noting(self, pool):
        seen.append((fingerprint(self._method.state_dict()), pool.replaced, dict(pool.sizes)))
        return sweep(self, pool)

    monkeypatch.setattr(BankTeacher, "_sweep", noting)
    engine.train(run)
    assert [entry[1:] for entry in seen] == [(n, {"large": 4, "small": 4, "support": 4}) for n in (0, 1)]
    assert seen[0][0] == seen[1][0]


def test_a_refresh_leaves_the_student_as_it_was(small, make_run):
    scene = SecondTask(small("epochs=4", "bank_refresh_epochs=2"), make_run)
    teacher = scene.teacher()
    with torch.no_grad():
        for parameter in scene.method.parameters():
            parameter.add_(0.01)
    before, generation = fingerprint(scene.method.state_dict()), scene.state.generation
    assert teacher.pool(2).replaced == 1
    assert scene.state.generation != generation
    assert fingerprint(scene.method.state_dict()) == before != scene.state.teacher
    teacher.close()


@pytest.mark.parametrize(("epochs", "kept"), [(2, False), (3, True)])
def test_the_teachers_weights_are_kept_only_for_a_refresh(small, make_run, epochs, kept):
    run = make_run(small(f"epochs={epochs}", "bank_refresh_epochs=2", "tasks=2", "labels=2/class", "memory=10"))
    engine.train(run)
    assert (run.folder / "checkpoint" / "teacher.pt").exists() == kept
    assert not (run.folder / "checkpoint" / "student.pt").exists()


def test_labeled_images_can_have_more_view_sets(small, make_run):
    """All sets are stored, the steps draw from all of them, and unlabeled images keep their own number."""
    scene = SecondTask(small("bank_views=1", "bank_support_views=8"), make_run)
    teacher = scene.teacher()
    pool = teacher.pool(0)
    batches = [scene.method.draw(scene.setup.draws, scene.now(0, step, pool)) for step in range(scene.task.steps)]
    old = [batch["supports"].keys.rows(batch["supports"].old) for batch in batches]
    assert {slot for keys in old for slot in keys.slots.tolist()} == set(range(8 * LABELED_VIEWS))
    assert {slot for batch in batches for slot in batch["large"].keys.slots.tolist()} == {0, 1}
    for step in range(len(batches)):
        scene.losses(scene.method, teacher, 0, step, pool)  # the bank has what they ask for
    with FeatureBank.open(scene.run.folder / "bank", generation=scene.state.generation) as bank:
        assert len(bank.keys("replay")[0]) == 8 * LABELED_VIEWS * len(scene.state.memory.ids)
        assert len(bank.keys("unlabeled")[0]) == 4 * len(scene.task.unlabeled)
    teacher.close()


def test_a_bank_holds_nothing_that_is_never_read(small, make_run):
    """Labels of the current task are compared in fresh views; for logits or features, those of the memory are too."""
    for distillation, roles in (("nnd", {"unlabeled", "replay"}), ("kd", {"unlabeled"}), ("feature", {"unlabeled"})):
        scene = SecondTask(small(f"distillation={distillation}"), make_run, distillation)
        teacher = scene.teacher()
        with FeatureBank.open(scene.run.folder / "bank", generation=scene.state.generation) as bank:
            assert {role for role in ("unlabeled", "support", "replay") if len(bank.keys(role)[0])} == roles
            assert len(bank) == sum(len(bank.keys(role)[0]) for role in roles)
        teacher.close()


def test_a_bank_of_other_pixels_is_not_continued(small, make_run, monkeypatch):
    scene = SecondTask(small(), make_run)
    scene.teacher().close()
    scene.teacher().close()  # the same pixels: continued
    monkeypatch.setattr(policy, "RENDERER_VERSION", policy.RENDERER_VERSION + 1)
    with pytest.raises(UserError, match="bank holds features of views that this version of nncsl renders otherwise"):
        scene.teacher()


def test_sweep_leaves_the_network_as_it_was(small, make_run):
    scene = SecondTask(small(), make_run)
    modes = [m.training for m in scene.network.modules()]
    before = fingerprint(scene.network.state_dict())
    scene.teacher()
    assert fingerprint(scene.network.state_dict()) == before
    assert [m.training for m in scene.network.modules()] == modes


def test_no_memory_means_no_teacher(small, make_run):
    """Without old supports there is nothing to distill, and nothing of the old task is stored."""
    run = make_run(small("memory=0", "epochs=1", "tasks=2"))
    engine.train(run)
    assert not (run.folder / "bank").exists()
