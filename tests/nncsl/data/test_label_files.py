"""Lists of labeled images as they were published: indices, names, and files that are neither."""

import os

import numpy as np
import pytest

from nncsl.data import label_files
from nncsl.data.label_files import Published
from nncsl.data.listing import NO_CLASS, ImageFile, Listing, published_order
from nncsl.errors import ConfigError

NAMES = ("n02869837", "n01440764")  # in the order of a class list, not of their names
FILES = tuple(f"{name}/{name}_{number}.JPEG" for name in NAMES for number in (10, 26, 7))
LABELS = np.array([0, 0, 0, 1, 1, 1])
LISTING = Listing(tuple(ImageFile(None, name) for name in FILES), LABELS, NAMES)


@pytest.fixture
def read(tmp_path):
    def read(text, published=None, labels=LABELS, names=NAMES):
        (tmp_path / "list.txt").write_text(text)
        order = published_order(LISTING, np.arange(6), by_class=True)
        return label_files.read(
            tmp_path / "list.txt", labels, range(len(names)), names, published or Published(FILES, order)
        ).tolist()

    return read


def test_names_of_image_net(read, capsys):
    """suncet's lists: class and number in one name, of all thousand classes."""
    text = "n01440764_26.JPEG\nn01443537_2.JPEG\nn02869837_7.JPEG\n\nn02869837_10.JPEG\n"
    assert read(text) == [0, 2, 4]
    assert "1 of its 4 names are of classes that this data set does not have" in capsys.readouterr().err


def test_names_of_test_images_are_left_out(read, capsys):
    """Who lists their own images may not know which ones are kept for the test."""
    published = Published(FILES, None, ("n01440764/n01440764_1.JPEG",))
    assert read("n01440764_26.JPEG\nn01440764/n01440764_1.JPEG\nn02869837_7.JPEG", published) == [2, 4]
    assert "1 of its 3 names are test images" in capsys.readouterr().err


def test_names_with_folders(read):
    assert read("n01440764/n01440764_7.JPEG\nn02869837_n02869837_26.JPEG") == [1, 5]


def test_indices_count_as_torchvision_does(read):
    """By the classes' names: the first image is one of n01440764, which stands second here."""
    assert read("0\n4\n") == [1, 3]


def test_images_without_files_go_by_class_and_place(read):
    """Of CIFAR: by the class's name or its number."""
    assert read("cat_0\n1_1\ncat_2", Published(), np.array([1, 0, 0, 1, 0]), ("cat", "dog")) == [1, 3, 4]
    with pytest.raises(ConfigError, match="line 2: no training image has the name '1_2'"):
        read("cat_0\n1_2", Published(), np.array([1, 0, 0, 1, 0]), ("cat", "dog"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("n01440764_26.JPEG\nn01440764_99.JPEG", r"line 2: no training image has the name 'n01440764_99.JPEG'"),
        ("other_1.JPEG\nother_2.JPEG", "none of its 2 names"),
        ("n01440764_26.JPEG\nn01440764_26.JPEG\nn02869837_7.JPEG", "1 images stand in it twice"),
        ("n01440764_26.JPEG", "no image belongs to class 'n02869837'"),
        ("1\n0\n1\n1\n", r"these are 4 class numbers, not images; .*without _cls"),
        ("9" * 400, "is not the index of one of 6"),
        ("", "is empty"),
    ],
)
def test_lists_that_do_not_fit(read, text, words):
    with pytest.raises(ConfigError, match=words):
        read(text)


def test_an_index_still_means_its_image_where_others_are_left_out(read):
    readable = np.array([0, 1, 2, 4, 5])  # the fourth, the first by name, can't be read
    order = published_order(LISTING, readable, by_class=True)
    assert order.tolist() == [NO_CLASS, 3, 4, 0, 1, 2]
    assert read("1\n3\n", Published(FILES, order), LABELS[readable]) == [0, 3]
    with pytest.raises(ConfigError, match="line 1: image 0 can't be read and was left out"):
        read("0\n3\n", Published(FILES, order), LABELS[readable])


def test_an_image_of_no_class_can_not_be_labeled(read):
    with pytest.raises(ConfigError, match="1 of its images have no class"):
        read("0\n1\n", Published(), np.array([NO_CLASS, 0]), ("cat",))


def test_a_pipe_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "list.txt")
    with pytest.raises(ConfigError, match="not a regular file"):
        label_files.read(tmp_path / "list.txt", LABELS, (0, 1), NAMES, Published())
