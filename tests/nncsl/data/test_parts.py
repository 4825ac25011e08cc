"""Images of several places behave as one data set; what is gone says so."""

import numpy as np
import pytest

from nncsl.data.images import ArrayImages
from nncsl.data.parts import Joined, Left, only
from nncsl.data.sources import SourceOptions, open_source
from nncsl.errors import DataError


def numbered(count, size, first):
    """Images whose every pixel is their number."""
    return ArrayImages(
        np.arange(first, first + count, dtype=np.uint8)[:, None, None, None].repeat(size, 1).repeat(size, 2)
    )


def test_joined_images_keep_their_numbers_and_sizes():
    joined = Joined((numbered(3, 2, 0), numbered(0, 4, 0), numbered(4, 5, 3)))
    assert len(joined) == 7 and joined.nbytes == 3 * 4 + 4 * 25
    ids = np.array([6, 0, 3, 2, 6])
    images = joined.gather(ids).each()
    assert [int(image.max()) for image in images] == ids.tolist() and all((i == i[0, 0]).all() for i in images)
    assert [len(image) for image in images] == [5, 2, 5, 2, 5]
    assert joined.gather(np.array([4, 5])).sizes is None and len(joined.gather(np.zeros(0, np.int64)).pixels) == 0


def test_of_many_images_those_that_are_left_can_be_seen():
    left = Left(100, np.array([7, 50, 99]), np.array([2, 0, 1]), numbered(3, 2, 10))
    assert len(left) == 100
    assert left.gather(np.array([99, 7, 99, 50])).pixels[:, 0, 0, 0].tolist() == [11, 12, 11, 10]
    with pytest.raises(DataError, match="training image 8 of an earlier task is gone"):
        left.gather(np.array([7, 8]))


def test_some_classes_of_a_source_are_a_source():
    digits = open_source("digits", SourceOptions())
    some = only(digits, ["7", "2"])
    assert some.class_names == ("7", "2") and np.unique(some.train_labels).tolist() == [0, 1]
    for images, labels, whole, known in (
        (some.train, some.train_labels, digits.train, digits.train_labels),
        (some.test, some.test_labels, digits.test, digits.test_labels),
    ):
        assert len(images) == len(labels) == np.isin(known, (7, 2)).sum()
        for number, label in enumerate((7, 2)):
            ours = images.gather(np.flatnonzero(labels == number)).pixels
            assert np.array_equal(ours, whole.gather(np.flatnonzero(known == label)).pixels)
    assert only(digits, digits.class_names) is digits
