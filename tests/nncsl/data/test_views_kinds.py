"""Weak, strong and plain views: the same recipe under any preset, in its size, flips and normalization."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from nncsl.config import load
from nncsl.data import views
from nncsl.data.catalog import open_data
from nncsl.data.policy import KINDS, PRESET_KINDS
from nncsl.data.sheets import views_of_one_image
from nncsl.data.views import Crop, draw, make_views, plain, render
from tests.nncsl.data.view_samples import CIFAR, DEVICES, DIGITS, IMAGENET, digits, photos, tiles

KEY = {"seed": 3, "task": 1}
MANY = 9000
ALPHA = 1e-3
# Plain images are resized there: those of an odd size, by another factor per axis where the photo is not square.
RESIZED = replace(CIFAR, large=Crop(2, 27, (0.75, 1.0)))
# The last of the blocks in which 120 outputs are computed is narrower than the frame.
LARGER = replace(CIFAR, large=Crop(2, 120, (0.75, 1.0)))
CASES = {
    "tiles": (tiles(64), CIFAR),
    "resized": (tiles(64), RESIZED),
    "wide photos": (photos()[:, :60, :97].repeat(8, axis=0), RESIZED),
    "photos": (photos().repeat(3, axis=0), IMAGENET),
    "several blocks": (photos()[:, :150, :120].repeat(8, axis=0), LARGER),
    "digits": (digits()[:64], DIGITS),
}


def drawn(policy, kind, count=MANY, sizes=(32, 32)):
    return draw(policy, kind, ids=np.arange(count), slots=np.arange(count) % 7, sizes=sizes, **KEY)


def keys(images):
    return {"ids": np.arange(len(images)), "slots": np.arange(len(images)) % 5}


def black(policy):
    return (0 - torch.tensor(policy.mean)) / torch.tensor(policy.std)


def pad_crop_flip(image, top, left, flip, pad, policy):
    """The usual way with one normalized image [C, size, size]: black all around, a square of it, mirrored or not."""
    size = image.shape[-1]
    padded = black(policy)[:, None, None].repeat(1, size + 2 * pad, size + 2 * pad)
    padded[:, pad : pad + size, pad : pad + size] = image
    square = padded[:, top : top + size, left : left + size]
    return square.flip(-1) if flip else square


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", CASES)
def test_weak_views_are_plain_images_padded_cropped_and_flipped(case, device):
    images, policy = CASES[case]
    pad = {32: 4, 27: 3, 224: 28, 120: 15, 8: 1}[policy.large.size]
    chosen = draw(policy, "weak", sizes=images.shape[1:3], **keys(images), **KEY)
    ours = make_views(images, **keys(images), policy=policy, kind="weak", device=device, **KEY).cpu()
    evaluated = plain(images, policy)
    assert ours.shape == evaluated.shape
    for row, image in enumerate(evaluated):
        place = int(chosen.top[row]), int(chosen.left[row]), bool(chosen.flip[row])
        assert torch.equal(ours[row], pad_crop_flip(image, *place, pad, policy)), (row, place)
    assert torch.equal(render(images, chosen, policy, "weak", device=device).cpu(), ours)


@pytest.mark.parametrize("extreme", [0, 30])
def test_frames_wider_than_a_block_of_outputs_are_black(extreme):
    """All outputs of the last block lie in the frame of every image, so that none of them has any weight."""
    images = photos()[:, :150, :120]
    chosen = draw(LARGER, "weak", sizes=(150, 120), **keys(images), **KEY)
    moved = replace(chosen, top=np.full(2, extreme), left=np.full(2, extreme), flip=np.array([False, True]))
    for ours, image, flip in zip(render(images, moved, LARGER, "weak"), plain(images, LARGER), moved.flip, strict=True):
        assert torch.equal(ours, pad_crop_flip(image, extreme, extreme, flip, 15, LARGER))


@pytest.mark.parametrize(("policy", "offsets"), [(DIGITS, 3), (CIFAR, 9), (IMAGENET, 57)])
def test_weak_offsets_and_flips_are_uniform(policy, offsets):
    chosen = drawn(policy, "weak", sizes=(50, 71))
    for values in (chosen.top, chosen.left):
        counts = np.bincount(values)
        assert len(counts) == offsets and stats.chisquare(counts).pvalue > ALPHA
    pairs = np.zeros((3, 3))
    np.add.at(pairs, (chosen.top * 3 // offsets, chosen.left * 3 // offsets), 1)
    assert stats.chi2_contingency(pairs).pvalue > ALPHA
    assert (chosen.height == policy.large.size).all() and (chosen.width == policy.large.size).all()
    if policy.flip:
        assert stats.binomtest(int(chosen.flip.sum()), MANY, policy.flip).pvalue > ALPHA
    assert not chosen.jitter.any() and not chosen.gray.any() and not chosen.equalize.any()
    assert (chosen.solarize == 256).all() and (chosen.blur == 0).all()


@pytest.mark.parametrize("kind", ["weak", "strong", "plain"])
def test_digits_never_flip(kind):
    assert not drawn(DIGITS, kind, sizes=(8, 8)).flip.any()


@pytest.mark.parametrize("policy", [CIFAR, DIGITS], ids=["color", "gray"])
def test_weak_views_are_padded_with_black(policy):
    """White images: what is not white is the frame, level 0 before normalization."""
    size, channels = policy.large.size, len(policy.mean)
    white = np.full((200, size, size, channels), 255, dtype=np.uint8)
    levels = make_views(white, **keys(white), policy=policy, kind="weak", **KEY)
    levels = levels * torch.tensor(policy.std)[:, None, None] + torch.tensor(policy.mean)[:, None, None]
    assert set((levels * 255).round().flatten().tolist()) == {0.0, 255.0}
    chosen = draw(policy, "weak", sizes=(size, size), **keys(white), **KEY)
    seen = (size - np.abs(chosen.top - size // 8)) * (size - np.abs(chosen.left - size // 8))
    assert ((levels[:, 0] > 0.5).sum(dim=(1, 2)).numpy() == seen).all()


@pytest.mark.parametrize("policy", [CIFAR, IMAGENET, DIGITS], ids=["cifar", "imagenet", "digits"])
def test_strong_views_share_one_recipe(policy):
    recipe = policy.of("strong")
    assert recipe.large == Crop(1, policy.large.size, (0.2, 1.0))
    assert (recipe.color, recipe.jitter, recipe.gray) == (0.5, 0.8, 0.2)
    assert (recipe.solarize, recipe.equalize, recipe.blur) == (0.0, 0.0, 0.0)
    assert (recipe.flip, recipe.mean, recipe.std) == (policy.flip, policy.mean, policy.std)

    chosen = drawn(policy, "strong", sizes=(400, 400))
    area, aspect = chosen.height * chosen.width / 400**2, chosen.width / chosen.height
    always_fits = area[area <= 0.75]  # whatever the aspect; of larger ones some tries are lost
    assert stats.kstest(always_fits, "uniform", (0.2, 0.55)).pvalue > ALPHA
    assert 0.199 < area.min() < 0.202 and 0.98 < area.max() <= 1
    assert 0.745 < aspect.min() < 0.76 and 1.32 < aspect.max() < 1.34
    for name, probability in (("jitter", 0.8), ("gray", 0.2)):
        assert stats.binomtest(int(getattr(chosen, name).sum()), MANY, probability).pvalue > ALPHA
    for name in ("brightness", "contrast", "saturation"):
        assert stats.kstest(getattr(chosen, name), "uniform", (0.6, 0.8)).pvalue > ALPHA
    assert stats.kstest(chosen.hue, "uniform", (-0.1, 0.2)).pvalue > ALPHA
    assert not chosen.equalize.any() and (chosen.solarize == 256).all() and (chosen.blur == 0).all()


def test_strong_views_are_large_views_of_their_policy():
    """Given the same parameters: nothing but the policy makes them strong."""
    chosen = drawn(CIFAR, "strong", count=64)
    strong = make_views(tiles(64), np.arange(64), np.arange(64) % 7, policy=CIFAR, kind="strong", **KEY)
    assert torch.equal(strong, render(tiles(64), chosen, CIFAR.of("strong"), "large"))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", CASES)
def test_plain_views_are_what_evaluation_sees_whatever_the_key(case, device):
    images, policy = CASES[case]
    expected = plain(images, policy, device=device)
    for seed, slot in ((0, 0), (7, 123)):
        ids, slots = np.arange(len(images)) + 3 * seed, np.full(len(images), slot)
        ours = make_views(images, ids, slots, policy=policy, kind="plain", seed=seed, task=slot, device=device)
        assert torch.equal(ours, expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", ["tiles", "wide photos", "digits"])
def test_chunks_batches_and_order_do_not_matter(case, kind, monkeypatch):
    images, policy = CASES[case]
    ids, slots = keys(images).values()
    key = {"policy": policy, "kind": kind, **KEY}
    whole = make_views(images, ids, slots, **key)
    size = policy.crop(kind).size
    assert whole.shape == (len(images), len(policy.mean), size, size) and whole.dtype == torch.float32
    order = np.random.default_rng(0).permutation(len(images))
    assert torch.equal(make_views(images[order], ids[order], slots[order], **key), whole[order])
    for row in (0, 5):
        one = slice(row, row + 1)
        assert torch.equal(make_views(images[one], ids[one], slots[one], **key), whole[one])
    monkeypatch.setattr(views, "_CHUNK_PIXELS_CPU", 3 * max(size**2, images.shape[1] * images.shape[2]))
    assert torch.equal(make_views(images, ids, slots, **key), whole)


@pytest.mark.parametrize("kind", ["weak", "strong", "plain"])
def test_what_follows_the_image_in_its_array_is_never_seen(kind):
    """Images of any shape, padded to a common one with white."""
    sizes = np.array([[32, 32], [17, 50], [50, 20], [27, 27]])
    padded = np.full((4, 50, 50, 3), 255, dtype=np.uint8)
    for image, (height, width) in zip(padded, sizes, strict=True):
        image[:height, :width] = photos()[0, 200 : 200 + height, 300 : 300 + width]
    for policy in (CIFAR, RESIZED):
        key = {"policy": policy, "kind": kind, **KEY}
        together = make_views(padded, np.arange(4), np.zeros(4, int), sizes=sizes, **key)
        for row, (height, width) in enumerate(sizes):
            alone = padded[row : row + 1, :height, :width]
            assert torch.equal(together[row], make_views(alone, np.array([row]), np.zeros(1, int), **key)[0])


@pytest.mark.parametrize("policy", [CIFAR, IMAGENET, DIGITS], ids=["cifar", "imagenet", "digits"])
def test_kinds_are_drawn_in_the_terms_of_a_policy(policy):
    for kind in PRESET_KINDS:
        assert policy.of(kind) is policy and policy.frame(kind) is None
    assert policy.crop("large") is policy.crop("support") is policy.large and policy.crop("small") is policy.small
    for kind in ("weak", "strong", "plain"):
        derived = policy.of(kind)
        assert derived.crop(kind) == policy.crop(kind) == derived.large and derived.large.size == policy.large.size
        assert derived.of(kind) == derived and derived.small == policy.small
    for ask in (policy.of, policy.crop, policy.frame):
        with pytest.raises(ValueError, match="one of large, small, support, weak, strong, plain, got 'tiny'"):
            ask("tiny")


def test_every_small_size_has_weak_views_of_its_size():
    """The area of a square in its frame is a rounded fraction: its side must come out whole all the same."""
    for size in (*range(1, 300), 331, 384, 512, 600):
        policy = replace(CIFAR, large=Crop(2, size, (0.5, 1.0)))
        for kind, offsets in (("weak", 2 * (size // 8)), ("plain", 0)):
            chosen = drawn(policy, kind, count=40)
            assert (chosen.height == size).all() and (chosen.width == size).all(), (size, kind)
            assert chosen.top.min() >= 0 and max(chosen.top.max(), chosen.left.max()) <= offsets, (size, kind)


def test_sheets_show_every_kind_and_the_plain_image_once():
    config = load("digits")
    source, tasks = open_data(config)
    rows = views_of_one_image(config, source, tasks, kinds=KINDS)
    counts = {kind: len(images) for kind, images in rows.items()}
    assert counts == {"original": 1, **dict.fromkeys(KINDS, 10), "plain": 1}
    assert np.array_equal(rows["plain"][0], rows["original"][0])
    assert list(views_of_one_image(config, source, tasks)) == ["original", *PRESET_KINDS]
