import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nncsl.replay import Memory, balanced_shares, random_ranking, update, update_unlabeled


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=12), st.integers(0, 200))
def test_shares_are_balanced_and_use_what_there_is(available, size):
    shares = balanced_shares(available, size)
    assert sum(shares) == min(size, sum(available))
    for share, count in zip(shares, available, strict=True):
        assert share <= count
        # A class gets less than another by more than one only where it has no more images.
        assert share == count or share >= max(shares) - 1


def test_shares_by_hand():
    assert balanced_shares([50, 50, 50, 50], 40) == [10, 10, 10, 10]
    assert balanced_shares([50, 50, 50], 40) == [14, 13, 13]
    assert balanced_shares([4, 50, 50], 40) == [4, 18, 18]
    assert balanced_shares([5] * 10, 8) == [1] * 8 + [0, 0]


@pytest.mark.parametrize("size", [0, 8, 20, 40, 1000])
def test_over_tasks_classes_only_shrink_and_never_take_what_is_gone(size):
    memory = Memory()
    for task in range(5):
        ids = np.arange(task * 100, task * 100 + 10)
        labels = np.repeat([2 * task, 2 * task + 1], 5)
        before = memory
        memory = update(before, ids, labels, range(2 * task + 2), size, random_ranking(0))
        assert len(memory.ids) == min(size, 10 * (task + 1)) and len(np.unique(memory.ids)) == len(memory.ids)
        assert np.isin(memory.ids, np.concatenate([before.ids, ids])).all()
        assert np.array_equal(memory.labels, 2 * (memory.ids // 100) + (memory.ids % 100) // 5)
        counts = np.bincount(memory.labels, minlength=2 * task + 2)
        assert counts.max() - counts.min() <= 1


def test_selection_depends_on_the_seed_alone():
    ids, labels = np.arange(100), np.repeat([0, 1], 50)
    first = update(Memory(), ids, labels, [0, 1], 20, random_ranking(0))
    shuffled = np.random.default_rng(0).permutation(100)
    again = update(Memory(), ids[shuffled], labels[shuffled], [0, 1], 20, random_ranking(0))
    other = update(Memory(), ids, labels, [0, 1], 20, random_ranking(1))
    assert np.array_equal(first.ids, again.ids) and not np.array_equal(first.ids, other.ids)


def test_unlabeled_memory_is_shared_by_tasks():
    memory = Memory()
    for task in range(4):
        memory = update_unlabeled(memory, np.arange(task * 100, task * 100 + 100), task + 1, 40, seed=0)
        assert len(memory.unlabeled) == 40 and memory.unlabeled.max() // 100 == task
    assert (np.bincount(memory.unlabeled // 100) >= 5).all()
    assert len(update_unlabeled(Memory(), np.arange(9), 1, 0, seed=0).unlabeled) == 0
