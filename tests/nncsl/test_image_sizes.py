"""Own images choose the sizes of their views, unless those are given."""

import pytest
from PIL import Image

from nncsl.cli import build_parser
from nncsl.cli.settings import configuration
from nncsl.config import load
from nncsl.config.scaling import settings_for
from nncsl.data.folders import typical_short_side
from nncsl.errors import ConfigError


@pytest.fixture
def images(tmp_path):
    """A function from a short side to a folder of images in two classes."""

    def make(short_side):
        for name in ("cat", "dog"):
            (tmp_path / "images" / name).mkdir(parents=True)
            for number in range(3):
                Image.new("RGB", (2 * short_side, short_side)).save(tmp_path / "images" / name / f"{number}.png")
        return tmp_path / "images"

    return make


def resolved(*words):
    return configuration(build_parser().parse_args(["config", *map(str, words)]))


@pytest.mark.parametrize(
    ("short_side", "large", "small", "stem"),
    [(32, 32, 18, "cifar"), (40, 32, 18, "cifar"), (84, 64, 36, "imagenet"), (300, 224, 96, "imagenet")],
)
def test_views_and_stem_go_by_the_images(images, short_side, large, small, stem):
    folder = images(short_side)
    assert typical_short_side(folder) == short_side
    config = resolved("--dataset", f"folder:{folder}")
    assert (config.views.large.size, config.views.small.size, config.network.stem) == (large, small, stem)
    assert (config.tasks, config.labels, config.memory) == (5, "0.8%", 500)  # not a matter of size


def test_what_is_given_stays(images):
    folder = images(300)
    given = resolved("--dataset", f"folder:{folder}", "--set", "views.large.size=48")
    assert (given.views.large.size, given.views.small.size, given.network.stem) == (48, 18, "cifar")
    assert resolved("--dataset", f"folder:{folder}", "--preset", "cifar10").views.large.size == 32
    assert resolved("--dataset", f"folder:{folder}", "--set", "unlabeled_batch=7").unlabeled_batch == 7
    for wrong in ("views=3", "views.large=4", "views=[1]"):
        with pytest.raises(ConfigError, match="expected a mapping"):
            resolved("--dataset", f"folder:{folder}", "--set", wrong)


def test_a_step_of_large_images_is_that_of_the_preset_made_for_them():
    made_for, ours = load("imagenet100"), load("cifar10", [settings_for(300)])
    assert ours.views == made_for.views and ours.unlabeled_batch == made_for.unlabeled_batch
    assert ours.lr_peak == made_for.lr_peak and settings_for(20) == {}


def test_a_folder_without_images_is_left_to_those_who_say_so(tmp_path):
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "broken.png").write_bytes(b"no image")
    assert typical_short_side(tmp_path) is None and typical_short_side(tmp_path / "absent") is None
