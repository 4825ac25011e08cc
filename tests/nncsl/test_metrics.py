"""Each metric against a matrix worked by hand."""

import pytest

from nncsl import metrics

R = [[90.0, 0.0, 0.0], [80.0, 70.0, 0.0], [60.0, 75.0, 50.0]]


def test_average_accuracy_is_the_last_rows_mean():
    assert metrics.average_accuracy(R) == pytest.approx((60 + 75 + 50) / 3)


def test_average_incremental_accuracy():
    assert metrics.average_incremental_accuracy([90.0, 75.0, 61.0]) == pytest.approx(226 / 3)


def test_backward_transfer():
    assert metrics.backward_transfer(R) == pytest.approx(((60 - 90) + (75 - 70)) / 2)


def test_forgetting_is_from_the_best():
    assert metrics.forgetting(R) == pytest.approx(((90 - 60) + (75 - 75)) / 2)


def test_forward_transfer():
    assert metrics.forward_transfer([12.0, 30.0], [10.0, 20.0]) == pytest.approx((2 + 10) / 2)


def test_one_task_has_nothing_to_transfer_or_forget():
    assert metrics.average_accuracy([[88.0]]) == 88.0
    assert metrics.backward_transfer([[88.0]]) == metrics.forgetting([[88.0]]) == metrics.forward_transfer([], []) == 0


def test_what_was_not_measured_makes_unknown_what_needs_it():
    """The test images of the first task are gone after the second."""
    partly = [[90.0, 0.0, 0.0], [80.0, 70.0, 0.0], [None, 75.0, 50.0]]
    assert metrics.average_accuracy(partly) is metrics.backward_transfer(partly) is metrics.forgetting(partly) is None
    assert metrics.forgotten(partly) == [None, 0.0] and metrics.forgotten(R) == [30.0, 0.0]
    assert (
        metrics.average_incremental_accuracy([90.0, None]) is None and metrics.average_accuracy(partly[:2]) is not None
    )
