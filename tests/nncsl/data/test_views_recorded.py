"""Pixels and fingerprints stay those of recorded runs and banks: hashes over digits, which are equal everywhere."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
import torch

from nncsl.data.views import Crop, make_views, plain
from tests.nncsl.data.view_samples import CIFAR, DIGITS, IMAGENET, digits

# All operations at once; levels without normalization, which hash alike on every processor.
COLORED = replace(CIFAR, gray=0.2, blur=0.5, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
GRAY = replace(DIGITS, mean=(0.0,), std=(1.0,))
RESIZED = replace(GRAY, large=Crop(2, 12, (0.6, 1.0)))


def colored_digits():
    """Three digits in the channels of each image, uint8 [32, 32, 32, 3]."""
    glyphs = digits()[:96].reshape(32, 3, 8, 8).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(glyphs.repeat(4, axis=1).repeat(4, axis=2))


def hashed(views):
    return hashlib.sha256((views * 255).round().to(torch.uint8).numpy().tobytes()).hexdigest()[:16]


@pytest.mark.parametrize(
    ("kind", "colored", "gray"),
    [
        ("large", "7011dad959f11030", "a30561dc84d6a0b2"),
        ("small", "0f4071a2f9db1980", "ad76d81397b89e37"),
        ("support", "8ec3322ef14a07ff", "d86d33d7cd3599df"),
        ("weak", "a4688e210c893001", "694e9d88d1ec246f"),
        ("strong", "b558d609f8b683e6", "70111cd8dc508340"),
    ],
)
def test_pixels_are_those_of_this_version_of_the_renderer(kind, colored, gray):
    """If this fails on purpose, raise RENDERER_VERSION: banks hold features of the old pixels."""
    key = {"ids": np.arange(32), "slots": np.arange(32) % 2, "kind": kind, "seed": 0, "task": 0}
    assert hashed(make_views(colored_digits(), policy=COLORED, **key)) == colored
    assert hashed(make_views(digits()[:32], policy=GRAY, **key)) == gray


def test_plain_pixels_are_those_of_this_version_of_the_renderer():
    assert hashed(plain(colored_digits(), COLORED)) == "699bcecd60ec4cd2"
    assert hashed(plain(digits()[:32], GRAY)) == "a5733d9a6c4c1ac8"
    assert hashed(plain(digits()[:32], RESIZED)) == "3576cf412a71bb2d"


def test_fingerprints_are_those_of_recorded_runs():
    named = {"cifar": CIFAR, "imagenet": IMAGENET, "digits": DIGITS}
    recorded = {name: policy.fingerprint()[:16] for name, policy in named.items()}
    assert recorded == {"cifar": "907e72f33777a337", "imagenet": "2e004471b2ceadb2", "digits": "7379e23c9ed80a2b"}
