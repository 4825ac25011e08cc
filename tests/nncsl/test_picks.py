"""Stored views take turns: all of an image are shown before any comes back, whoever asks in whatever order."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from nncsl import picks
from nncsl.batches import Draws
from tests.nncsl.scenes import SecondTask


@pytest.mark.parametrize(("size", "count"), [(8, 2), (4, 1), (6, 6), (1, 1), (7, 3), (5, 2)])
def test_a_turn_shows_every_view_before_the_next_begins(size, count):
    ids, moments = np.arange(50), -(-size // count)
    shown = np.stack([picks.in_turns(3, ids, np.full(50, m), size, count) for m in range(10 * moments)])
    assert shown.shape == (10 * moments, 50, count)
    assert all(len(set(row)) == count for step in shown for row in step)
    turns = shown.reshape(10, moments, 50, count).transpose(0, 2, 1, 3).reshape(10, 50, moments * count)
    assert (np.sort(turns[:, :, :size], axis=2) == np.arange(size)).all()
    if size > 4:  # the order is the image's own, and a new one in each turn
        assert len({tuple(turns[0, image]) for image in range(50)}) > 25
        assert len({tuple(turns[turn, 7]) for turn in range(10)}) > 5


@pytest.mark.parametrize("pick", [picks.at_random, picks.in_turns])
def test_no_images_and_no_views(pick):
    nobody = np.zeros(0, np.int64)
    assert pick(0, nobody, nobody, 4, 2).shape == (0, 2)
    assert pick(0, np.arange(3), np.arange(3), 4, 0).shape == (3, 0)


class Shown:
    """Digits' second task with a real bank, and which stored views its steps show, in the order in which they do."""

    def __init__(self, small, make_run, *assignments):
        self.scene = SecondTask(small("epochs=12", "bank_views=3", "bank_support_views=6", *assignments), make_run)
        self.teacher = self.scene.teacher("features")
        self.pool = self.teacher.pool(0)
        self.steps = [self.scene.now(*divmod(n, self.scene.task.steps), self.pool) for n in range(240)]

    def by_image(self, draws=None):
        """{(kind, image): the slots [moments, count] of its stored views}; an image that comes again has a new row."""
        found = {}
        for now in self.steps:
            for group in self.scene.method.draw(draws or self.scene.setup.draws, now).values():
                stored = group.rows(np.isin(group.keys.ids, self.pool.images[group.keys.kind])).keys
                views = stored.slots.reshape(2, -1).T
                for image, slots in zip(stored.ids[: len(views)], views, strict=True):
                    found.setdefault((stored.kind, int(image)), []).append(slots)
        return {key: np.stack(slots) for key, slots in found.items()}


@pytest.fixture
def turns(small, make_run):
    opened = []

    def make(*assignments):
        opened.append(Shown(small, make_run, *assignments))
        return opened[-1]

    yield make
    for shown in opened:
        shown.teacher.close()


@pytest.mark.parametrize("per_class", [3, 4, 5])
def test_every_stored_view_of_a_memory_image_is_shown_equally_often(turns, per_class):
    """With 4 images of a class, 3 in a step leave one out, 5 show one of them twice."""
    shown = turns("bank_order=turns", f"labeled_per_class={per_class}").by_image()
    supports = [slots for (kind, _), slots in shown.items() if kind == "support"]
    assert len(supports) == 8
    for slots in supports:
        in_order = slots.ravel()
        assert len(in_order) > 20 * 12
        whole = in_order[: len(in_order) // 12 * 12].reshape(-1, 12)
        assert (np.sort(whole, axis=1) == np.arange(12)).all()
        counts = Counter(in_order.tolist()).values()
        assert max(counts) - min(counts) <= 1


def test_every_stored_view_of_an_unlabeled_image_is_shown_equally_often(turns):
    """But for the passes that leave an image out, since a last batch that is not full is dropped."""
    made = turns("bank_order=turns", "unlabeled_batch=60")
    passes = 240 // made.scene.task.steps
    assert passes >= 36
    for (kind, _), slots in made.by_image().items():
        if kind != "support":
            assert slots.max() < 6
            times = np.bincount(slots.ravel(), minlength=6)
            left_out = passes - len(slots)
            assert times.max() <= -(-passes // 3) and times.sum() == 2 * len(slots)
            assert times.max() - times.min() <= 1 + left_out
            if not left_out:
                whole = slots[: len(slots) // 3 * 3].reshape(-1, 6)
                assert (np.sort(whole, axis=1) == np.arange(6)).all()


def test_at_random_some_views_are_shown_more_often(turns):
    spread = [np.ptp(np.bincount(slots.ravel())) for slots in turns().by_image().values()]
    assert np.mean(spread) > 2


def test_a_step_shows_the_same_whatever_was_asked_before(turns):
    made = turns("bank_order=turns", "labeled_per_class=3")
    config, memory = made.scene.config, made.scene.state.memory
    expected = [made.scene.method.draw(made.scene.setup.draws, now) for now in made.steps[:60]]
    for number in (59, 3, 3, 4, 40, 0):
        for draws in (made.scene.setup.draws, Draws(made.scene.task, memory, config)):
            batch = made.scene.method.draw(draws, made.steps[number])
            for name, group in expected[number].items():
                assert np.array_equal(batch[name].keys.slots, group.keys.slots)
    other = Draws(made.scene.task, memory, replace(config, seed=config.seed + 1))
    assert not np.array_equal(
        made.scene.method.draw(other, made.steps[0])["supports"].keys.slots, expected[0]["supports"].keys.slots
    )
