"""The protocol, and that nothing else can reach training: no old image, no test image, no hidden label."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from nncsl.data.labels import LabelBudget
from nncsl.data.sources import NO_CLASS, SourceOptions, open_source
from nncsl.data.tasks import Forbidden, Stream, check_memory, split_tasks
from nncsl.errors import ConfigError


@pytest.fixture(scope="module")
def digits():
    return open_source("digits", SourceOptions())


@pytest.fixture(scope="module")
def tasks(digits):
    return split_tasks(digits, tasks=5, labels="4/class", seed=0)


def test_tasks_partition_classes_and_images(digits, tasks):
    assert [task.classes for task in tasks] == [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)]
    everything = np.concatenate([task.unlabeled for task in tasks])
    assert sorted(everything) == list(range(len(digits.train)))
    for task in tasks:
        assert set(digits.train_labels[task.unlabeled]) == set(task.classes)
        assert np.bincount(digits.train_labels[task.labeled], minlength=10)[list(task.classes)].tolist() == [4, 4]
        assert np.isin(task.labeled, task.unlabeled).all()


def test_split_is_the_same_everywhere_and_differs_by_seed(tasks, digits):
    """Recorded once: a change of this hash breaks every published result's split."""
    ids = np.concatenate([task.labeled for task in tasks])
    assert hashlib.sha256(ids.astype("<i8").tobytes()).hexdigest()[:16] == "d8317dcd54bf22cf"
    other = split_tasks(digits, tasks=5, labels="4/class", seed=1)
    assert not np.array_equal(ids, np.concatenate([task.labeled for task in other]))


def test_class_order_and_fraction(digits):
    order = (9, 8, 7, 6, 5, 4, 3, 2, 1, 0)
    tasks = split_tasks(digits, tasks=2, labels="3%", seed=0, class_order=order, unlabeled_fraction=0.5)
    assert [task.classes for task in tasks] == [order[:5], order[5:]]
    for task in tasks:
        members = np.isin(digits.train_labels, task.classes).sum()
        assert len(task.unlabeled) == round(members / 2)
        assert np.isin(digits.train_labels[task.unlabeled], task.classes).all()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"tasks": 11}, ["tasks=11", "10 classes"]),
        ({"tasks": 3, "sizes": (4, 3, 2)}, ["4,3,2", "9 classes", "has 10", "--tasks 4,3,3"]),
        ({"labels": "200/class"}, ["200/class", "'0'", "128"]),
        ({"class_order": (0, 1, 2)}, ["class_order", "0..9"]),
    ],
)
def test_impossible_protocols(digits, arguments, words):
    with pytest.raises(ConfigError) as error:
        split_tasks(digits, **{"tasks": 5, "labels": "4/class", "seed": 0} | arguments)
    assert all(word in str(error.value) for word in words)


def test_memory_must_hold_the_classes_that_are_replayed():
    check_memory(0, (2,) * 5)
    check_memory(8, (2,) * 5)  # the paper's smallest: the last task's classes are never replayed
    check_memory(4, (2, 2, 6))
    with pytest.raises(ConfigError, match=r"memory=7.*8"):
        check_memory(7, (2,) * 5)


@pytest.mark.parametrize(("text", "expected"), [("0.8%", 0.008), ("25 %", 0.25), ("100%", 1.0)])
def test_percentages(text, expected):
    assert LabelBudget.parse(text).fraction == pytest.approx(expected)


@pytest.mark.parametrize("text", ["0%", "101%", "0/class", "some", "4 per class", "", "-1%"])
def test_budgets_that_make_no_sense(text):
    with pytest.raises(ConfigError, match="labels="):
        LabelBudget.parse(text)


def test_paper_budgets_are_met_exactly():
    """0.8% is 40 of 5,000 and 4 of 500; 1% of 1,300 is 13."""
    for size, budget, expected in [(5000, "0.8%", 40), (500, "0.8%", 4), (1300, "1%", 13), (500, "25%", 125)]:
        labels = np.repeat(np.arange(3), size)
        chosen = LabelBudget.parse(budget).choose(labels, range(3), 0, ("a", "b", "c"))
        assert np.bincount(labels[chosen]).tolist() == [expected] * 3


def test_every_task_may_have_its_own_budget(digits):
    order = (9, 8, 7, 6, 5, 4, 3, 2, 1, 0)
    tasks = split_tasks(digits, tasks=5, labels="100%,5%,4/class, 1/class,20%", seed=0, class_order=order)
    whole = split_tasks(digits, tasks=5, labels="4/class", seed=0, class_order=order)
    assert len(tasks[0].labeled) == len(tasks[0].unlabeled)
    assert [len(task.labeled) for task in tasks[2:4]] == [8, 2]
    assert np.array_equal(tasks[2].labeled, whole[2].labeled)  # a budget draws the same images beside any other one
    assert len(tasks[1].labeled) < len(tasks[4].labeled) < len(tasks[4].unlabeled)
    at_once = split_tasks(digits, tasks=1, labels="100%,5%,4/class,1/class,20%", seed=0, class_order=order)
    assert np.array_equal(np.sort(np.concatenate([task.labeled for task in tasks])), at_once[0].labeled)


def test_tasks_of_unequal_sizes_have_their_own_budgets(digits):
    sizes, labels = (5, 1, 4), "2/class,0%,3/class"
    tasks = split_tasks(digits, tasks=3, sizes=sizes, labels=labels, seed=0)
    assert [task.classes for task in tasks] == [(0, 1, 2, 3, 4), (5,), (6, 7, 8, 9)]
    assert [task.old for task in tasks] == [(), (0, 1, 2, 3, 4), (0, 1, 2, 3, 4, 5)]
    assert [len(task.labeled) for task in tasks] == [10, 0, 12]
    assert sorted(np.concatenate([task.unlabeled for task in tasks])) == list(range(len(digits.train)))
    at_once = split_tasks(digits, tasks=1, sizes=sizes, labels=labels, seed=0)
    assert np.array_equal(np.sort(np.concatenate([task.labeled for task in tasks])), at_once[0].labeled)


def test_classes_that_do_not_divide_are_spread_as_evenly_as_they_go(digits):
    tasks = split_tasks(digits, tasks=3, labels="1/class,2/class,3/class", seed=0)
    assert [len(task.classes) for task in tasks] == [4, 3, 3]
    assert [len(task.labeled) for task in tasks] == [4, 6, 9]


def test_images_of_no_class_are_spread_over_the_tasks(digits):
    hidden = np.arange(0, len(digits.train_labels), 3)
    labels = digits.train_labels.copy()
    labels[hidden] = NO_CLASS
    tasks = split_tasks(replace(digits, train_labels=labels), tasks=3, sizes=(5, 2, 3), labels="4/class", seed=0)
    shares = [np.intersect1d(task.unlabeled, hidden) for task in tasks]
    assert sorted(np.concatenate(shares)) == hidden.tolist()
    assert [len(share) for share in shares] == pytest.approx([len(hidden) * part for part in (0.5, 0.2, 0.3)], abs=1)
    assert not any(np.isin(task.labeled, hidden).any() for task in tasks)


@pytest.mark.parametrize("text", ["0%,0/class", "5%,", "5%,split.txt"])
def test_lists_of_budgets_that_make_no_sense(text):
    with pytest.raises(ConfigError, match="labels="):
        LabelBudget.parse(text)


def test_published_split_from_a_file(digits, tmp_path):
    path = tmp_path / "split.txt"
    ids = [int(np.flatnonzero(digits.train_labels == c)[0]) for c in range(10)]
    path.write_text("\n".join(map(str, ids)))
    tasks = split_tasks(digits, tasks=5, labels=str(path), seed=0)
    assert sorted(np.concatenate([task.labeled for task in tasks])) == sorted(ids)
    for content, words in [("5\n5\n", "twice"), ("99999\n", "line 1.*99999"), ("x\n", "line 1.*'x'"), ("0\n", "class")]:
        path.write_text(content)
        with pytest.raises(ConfigError, match=words):
            split_tasks(digits, tasks=5, labels=str(path), seed=0)
    with pytest.raises(ConfigError, match="can't be read"):
        split_tasks(digits, tasks=5, labels=str(tmp_path / "absent.txt"), seed=0)


def test_stream_hides_other_tasks(digits, tasks):
    """Every training image is asked for, in every task; exactly the permitted ones are given."""
    stream = Stream(digits, tasks)
    nothing = np.zeros(0, np.int64)
    for now in range(len(tasks)):
        memory = np.concatenate([nothing, *(task.labeled[:2] for task in tasks[:now])])
        kept = np.concatenate([nothing, *(task.unlabeled[:1] for task in tasks[:now])])
        task = stream.begin(now, memory, kept)
        pixels = set(task.unlabeled) | set(task.labeled) | set(memory) | set(kept)
        for image in range(len(digits.train)):
            ask = np.array([image])
            assert _given(stream.gather, ask) == (image in pixels)
        one_forbidden = np.array([task.labeled[0], tasks[(now + 1) % 5].labeled[3]])
        assert not _given(stream.gather, one_forbidden)
    with pytest.raises(Forbidden, match="over"):
        stream.begin(0, nothing, nothing)


def test_stream_refuses_a_memory_of_unlabeled_or_future_images(digits, tasks):
    nothing = np.zeros(0, np.int64)
    hidden = np.setdiff1d(tasks[0].unlabeled, tasks[0].labeled)[:1]
    for stray in (hidden, tasks[2].labeled[:1]):
        with pytest.raises(Forbidden, match=str(stray[0])):
            Stream(digits, tasks).begin(1, stray, nothing)
    with pytest.raises(Forbidden, match=str(tasks[2].unlabeled[0])):
        Stream(digits, tasks).begin(1, nothing, tasks[2].unlabeled[:1])


def test_a_method_may_keep_any_image_of_the_past_and_none_of_the_future(digits, tasks):
    nothing, stream = np.zeros(0, np.int64), Stream(digits, tasks)
    kept = np.concatenate([tasks[0].labeled[:1], np.setdiff1d(tasks[0].unlabeled, tasks[0].labeled)[:2]])
    stream.begin(1, nothing, nothing, kept)
    given = [image for image in tasks[0].unlabeled if _given(stream.gather, np.array([image]))]
    assert given == sorted(kept)
    stream.begin(2, nothing, nothing)
    assert not _given(stream.gather, kept[:1])
    with pytest.raises(Forbidden, match=str(tasks[3].unlabeled[0])):
        stream.begin(2, nothing, nothing, tasks[3].unlabeled[:1])


def test_stream_can_not_reach_the_test_set(digits, tasks):
    """Training and test pixels are different arrays, and an index past the training set is an error."""
    stream = Stream(digits, tasks)
    stream.begin(0, np.zeros(0, np.int64), np.zeros(0, np.int64))
    with pytest.raises(IndexError):
        stream.gather(np.array([len(digits.train)]))
    with pytest.raises(Forbidden):
        stream.gather(np.array([-1]))
    assert not np.shares_memory(digits.train.array, digits.test.array)


def _given(ask, ids):
    try:
        return len(ask(ids) if ask.__name__ == "labels" else ask(ids).pixels) == len(ids)
    except Forbidden:
        return False
