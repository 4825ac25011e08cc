"""The drawn parameters follow torchvision's distributions: 100,000 draws against its own samplers, fixed seeds."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from nncsl.data.torchvision_compat import torchvision
from nncsl.data.views import KINDS, Crop, draw
from tests.nncsl.data.view_samples import CIFAR, IMAGENET

ColorJitter, RandomResizedCrop = torchvision.transforms.ColorJitter, torchvision.transforms.RandomResizedCrop

DRAWS = 100_000
ALPHA = 1e-3


def drawn(policy, kind="large", sizes=(32, 32), count=DRAWS, seed=11, task=0):
    return draw(policy, kind, seed=seed, task=task, ids=np.arange(count), slots=np.arange(count) % 7, sizes=sizes)


def torchvision_crops(crop, sizes, count=DRAWS):
    """[count, 4]: top, left, height, width."""
    blank = torch.empty(3, *sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        rows = [RandomResizedCrop.get_params(blank, list(crop.area), list(crop.aspect)) for _ in range(count)]
    return np.array(rows)


def same_counts(ours, theirs):
    """p value of "both samples of discrete values come from one distribution"; rare values are pooled."""
    first, second = Counter(map(tuple, ours.tolist())), Counter(map(tuple, theirs.tolist()))
    common = [value for value in first | second if first[value] + second[value] >= 40]
    table = np.array([[counts[value] for value in common] for counts in (first, second)])
    rest = np.array([[len(ours)], [len(theirs)]]) - table.sum(axis=1, keepdims=True)
    table = np.hstack([table, rest]) if rest.sum() >= 40 else table
    return 1.0 if table.shape[1] == 1 else stats.chi2_contingency(table, correction=False).pvalue


@pytest.mark.parametrize(
    ("crop", "sizes", "count"),
    [
        (CIFAR.large, (32, 32), DRAWS),
        (CIFAR.small, (32, 32), 30_000),
        (IMAGENET.large, (256, 341), 30_000),
        (Crop(1, 8, (0.6, 1.0)), (60, 20), 5_000),  # too narrow for most tries: often the centered fallback
        (Crop(1, 8, (0.9, 1.0)), (10, 90), 5_000),  # too wide for any
    ],
)
def test_crops(crop, sizes, count):
    ours = drawn(replace(CIFAR, large=crop), sizes=sizes, count=count)
    theirs = torchvision_crops(crop, sizes, count)
    boxes = np.stack([ours.top, ours.left, ours.height, ours.width], axis=1)
    assert same_counts(boxes[:, 2:], theirs[:, 2:]) > ALPHA
    assert same_counts(boxes[:, [0, 2]], theirs[:, [0, 2]]) > ALPHA
    assert same_counts(boxes[:, [1, 3]], theirs[:, [1, 3]]) > ALPHA
    for measure in (lambda box: box[:, 2] * box[:, 3], lambda box: box[:, 3] / box[:, 2]):
        assert stats.ks_2samp(measure(boxes), measure(theirs)).pvalue > ALPHA
    assert (boxes[:, :2] >= 0).all() and (boxes[:, :2] + boxes[:, 2:] <= sizes).all()


def test_crop_fallback_is_torchvisions():
    """No try fits, so nothing is random and both must agree exactly."""
    for sizes in ((10, 90), (90, 10), (11, 200)):
        crop = Crop(1, 8, (0.9, 1.0))
        ours = drawn(replace(CIFAR, large=crop), sizes=sizes, count=5)
        expected = torchvision_crops(crop, sizes, 1)[0]
        for row in range(5):
            assert [ours.top[row], ours.left[row], ours.height[row], ours.width[row]] == expected.tolist()


@pytest.mark.parametrize(("s", "count"), [(0.5, DRAWS), (1.5, 20_000)])  # 1.5: the factors' range is cut at zero
def test_jitter(s, count):
    sampler = ColorJitter(0.8 * s, 0.8 * s, 0.8 * s, 0.2 * s)
    ranges = sampler.brightness, sampler.contrast, sampler.saturation, sampler.hue
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(6)
        theirs = [ColorJitter.get_params(*ranges) for _ in range(count)]
    ours = drawn(replace(CIFAR, color=s), count=count)
    for position, name in enumerate(("brightness", "contrast", "saturation", "hue"), start=1):
        assert stats.ks_2samp(getattr(ours, name), [row[position] for row in theirs]).pvalue > ALPHA, name
    assert same_counts(ours.order, np.stack([row[0].numpy() for row in theirs])) > ALPHA
    assert len(set(map(tuple, ours.order.tolist()))) == math.factorial(4)


def test_probabilities_and_ranges():
    policy = replace(CIFAR, gray=0.2, blur=0.5, solarize=0.2, equalize=0.3)
    ours = drawn(policy)
    happened = {
        "flip": ours.flip,
        "jitter": ours.jitter,
        "gray": ours.gray,
        "equalize": ours.equalize,
        "solarize": ours.solarize < 256,
        "blur": ours.blur > 0,
    }
    for name, events in happened.items():
        assert stats.binomtest(int(events.sum()), DRAWS, getattr(policy, name)).pvalue > ALPHA, name
    assert stats.kstest(ours.solarize[happened["solarize"]], "uniform", (0, 256)).pvalue > ALPHA
    assert stats.kstest(ours.blur[happened["blur"]], "uniform", (0.1, 1.9)).pvalue > ALPHA


def test_probabilities_zero_and_one_are_certain():
    names = ("flip", "jitter", "gray", "equalize", "solarize", "blur")
    never, always = (drawn(replace(CIFAR, **dict.fromkeys(names, p)), count=5000) for p in (0.0, 1.0))
    for name in ("flip", "jitter", "gray", "equalize"):
        assert not getattr(never, name).any() and getattr(always, name).all()
    assert (never.solarize == 256).all() and (always.solarize < 256).all()
    assert (never.blur == 0).all() and (always.blur > 0).all()


def test_choices_are_independent_of_each_other_and_of_neighboring_keys():
    policy = replace(CIFAR, gray=0.2, blur=0.5)

    def columns(**key):
        p = drawn(policy, sizes=(1000, 1000), **key)
        place = (p.top + 0.5) / (1001 - p.height), (p.left + 0.5) / (1001 - p.width)
        events = [p.flip, p.jitter, p.gray, p.equalize, p.solarize, p.blur]
        factors = [p.brightness, p.contrast, p.saturation, p.hue, p.order[:, 0]]
        return np.stack([*place, p.height * p.width, *events, *factors]).astype(float)

    base = columns()
    others = [columns(seed=12), columns(task=1), columns(kind="support"), np.roll(base, 1, axis=1)]
    correlations = np.corrcoef(np.concatenate([base, *others]))[: len(base)]
    correlations -= np.eye(*correlations.shape)
    assert np.abs(correlations).max() < 5 / math.sqrt(DRAWS)


def test_kinds_have_their_own_streams():
    hues = [drawn(CIFAR, kind=kind, count=2000).hue for kind in KINDS]
    assert len(np.unique(np.concatenate(hues))) == 2000 * len(KINDS)
