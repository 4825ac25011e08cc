"""ER-ACE by its formula, with current images in the memory."""

import numpy as np
import pytest

from nncsl import engine, methods
from nncsl.batches import Moment
from nncsl.data.tasks import Stream
from nncsl.replay import Memory
from nncsl.teachers import Teacher
from tests.nncsl.methods.test_derpp import naive_cross_entropy
from tests.nncsl.scenes import SecondTask


def test_a_step_by_its_formula(small, make_run):
    """The task's images among its two classes, memory images among all four seen ones; a sum of two means."""
    scene = SecondTask(small("method=er-ace", "labels=6/class", "labeled_batch=10"), make_run)
    method, seen = scene.method.double(), []
    batch = method.draw(scene.setup.draws, scene.now(0, 0))

    def watched(images):
        outputs = method.network(images)
        seen.append(method.network.head(outputs.features).detach())
        return outputs

    losses = scene.losses(method, Teacher(), forward=watched)
    stream, memory = seen
    assert set(batch["remembered"].labels.tolist()) == {0, 1, 2, 3}
    expected = {
        "lin": naive_cross_entropy(stream, batch["labeled"].labels, (2, 3)),
        "replay": naive_cross_entropy(memory, batch["remembered"].labels, range(4)),
    }
    assert {name: part.item() for name, part in losses.parts.items()} == pytest.approx(expected, rel=1e-6)
    assert losses.total.item() == pytest.approx(expected["lin"] + expected["replay"], rel=1e-6)
    losses.total.backward()
    assert not method.network.head.weight.grad[4:].any()


def test_the_tasks_images_alone_do_not_move_old_classes(small, make_run):
    scene = SecondTask(small("method=er-ace"), make_run)
    scene.losses(scene.method, Teacher()).parts["lin"].backward()
    moved = scene.network.head.weight.grad.abs().sum(dim=1) > 0
    assert moved.tolist() == [2 <= c < 4 for c in range(10)]


def test_an_image_in_both_batches_is_seen_in_two_views(small, make_run):
    scene = SecondTask(small("method=er-ace"), make_run)
    batch = scene.method.draw(scene.setup.draws, scene.now(0, 1))
    stream, memory = batch["labeled"].keys, batch["remembered"].keys
    both = np.intersect1d(stream.ids, memory.ids)
    assert len(both)
    for image in both:
        assert stream.slots[stream.ids == image] != memory.slots[memory.ids == image]


def test_in_the_first_task_there_is_nothing_to_rank(small, make_run):
    run = make_run(small("method=er-ace"))
    method = methods.build(run.config, 10)
    first = run.tasks[0]
    setup = engine.set_up(run, Stream(run.source, run.tasks), Memory(first.labeled, first.labels), 0)
    phase = method.phases(setup.task)[0]
    losses = method.losses(engine.look(method, setup, phase, Moment(0, 0, 0, 0), Teacher(), method.network))
    assert set(losses.parts) == {"lin"} and losses.total is losses.parts["lin"]


def test_while_a_task_is_learned_the_memory_has_its_images(small, make_run, monkeypatch):
    met, draw = {}, methods.find("er-ace").draw

    def watched(self, draws, now):
        met[draws.task.index] = set(draws.memory.labels.tolist())
        return draw(self, draws, now)

    monkeypatch.setattr(methods.find("er-ace"), "draw", watched)
    engine.train(make_run(small("method=er-ace", "epochs=1")))
    assert met == {index: set(range(2 * index + 2)) for index in range(5)}
