"""Pixels against torchvision's functional operations, on Pillow images and on tensors, for given parameters."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.colors import hsv_to_rgb, rgb_to_hsv
from PIL import Image

from nncsl.data import blur, colors, crops, staged
from nncsl.data.torchvision_compat import torchvision
from nncsl.data.views import draw, plain, render
from nncsl.steps.transfer import ship
from tests.nncsl.data.view_samples import CIFAR, DEVICES, DIGITS, IMAGENET, digits, photos, tiles

F = torchvision.transforms.functional

COUNT = 256
FACTORS = np.random.default_rng(0).uniform(0.0, 1.0, COUNT)


def levels_of(images, device="cpu"):
    return torch.from_numpy(images).permute(0, 3, 1, 2).float().to(device)


def per_image(values, device="cpu"):
    return torch.as_tensor(values, dtype=torch.float32, device=device).view(-1, 1, 1, 1)


def on_pillow(images, operation):
    """operation(image, row) of every image as Pillow sees it, uint8 [n, C, H, W]."""
    results = (np.asarray(operation(Image.fromarray(image.squeeze()), row)) for row, image in enumerate(images))
    return np.stack([np.atleast_3d(result).transpose(2, 0, 1) for result in results])


def on_tensors(images, operation):
    tensors = torch.from_numpy(images).permute(0, 3, 1, 2)
    return np.stack([operation(tensor, row).numpy() for row, tensor in enumerate(tensors)])


def assert_close(ours, theirs, *, levels, share):
    """Nowhere more than `levels` apart, and different at all in at most this share of the values."""
    ours = ours.cpu().numpy()
    assert ours.shape == theirs.shape
    assert (ours == np.floor(ours)).all() and ours.min() >= 0 and ours.max() <= 255
    apart = np.abs(ours - theirs.astype(float))
    assert apart.max() <= levels, f"{apart.max()} levels apart"
    assert (apart > 0).mean() <= share, f"{(apart > 0).mean():.5f} of the values differ"


JITTER_CASES = [
    # name, range of factors, then for Pillow and for tensors: levels apart, share of values that differ
    ("brightness", (0.2, 1.8), (0, 0.0), (0, 0.0)),
    ("contrast", (0.2, 1.8), (0, 0.0), (1, 0.5)),  # tensors truncate the luma and its mean, Pillow rounds them
    ("saturation", (0.2, 1.8), (0, 0.0), (1, 0.5)),
    ("hue", (-0.2, 0.2), (20, 0.3), (1, 0.2)),  # Pillow takes hue and saturation to 8 bits first, tensors truncate
    ("hue", (-0.5, 0.5), (20, 0.3), (1, 0.2)),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("name", "bounds", "pillow", "tensor"), JITTER_CASES)
def test_jitter(name, bounds, pillow, tensor, device):
    factors = bounds[0] + FACTORS * (bounds[1] - bounds[0])
    ours = getattr(colors, name)(levels_of(tiles(), device), per_image(factors, device))
    adjust = getattr(F, f"adjust_{name}")
    for reference, (levels, share) in ((on_pillow, pillow), (on_tensors, tensor)):
        theirs = reference(tiles(), lambda image, row: adjust(image, float(factors[row])))
        assert_close(ours, theirs, levels=levels, share=share)


def turned_exactly(images, turn):
    """Images uint8 [n, H, W, 3] with their hue turned in double precision, rounded once: uint8 [n, 3, H, W]."""
    hsv = rgb_to_hsv(images / 255)
    hsv[..., 0] = (hsv[..., 0] + np.reshape(turn, (-1, 1, 1))) % 1
    return np.rint(hsv_to_rgb(hsv) * 255).astype(np.uint8).transpose(0, 3, 1, 2)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("most", [0.2, 0.5])
def test_hue_is_the_exactly_turned_one_rounded_once(most, device):
    turn = most * (2 * FACTORS - 1)
    ours = colors.hue(levels_of(tiles(), device), per_image(turn, device))
    assert_close(ours, turned_exactly(tiles(), turn), levels=1, share=1e-4)
    theirs = on_pillow(tiles(), lambda image, row: F.adjust_hue(image, float(turn[row])))
    assert np.abs(ours.cpu().numpy() - theirs).mean() < 0.45


def test_hue_of_all_primary_colors_and_grays():
    corners = torch.tensor([[r, g, b] for r in (0, 128, 255) for g in (0, 128, 255) for b in (0, 128, 255)])
    images = corners.view(1, 27, 1, 3).to(torch.uint8).numpy()
    for turn in (-0.5, -1 / 3, -1 / 6, 0.0, 1 / 6, 1 / 3, 0.5):
        ours = colors.hue(levels_of(images), per_image([turn]))
        assert_close(ours, turned_exactly(images, [turn]), levels=0, share=0)
        theirs = on_tensors(images, lambda image, row, turn=turn: F.adjust_hue(image, turn))
        assert_close(ours, theirs, levels=1, share=0.1)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("images", [tiles(), tiles(size=18), digits()[:256].repeat(3, axis=3)], ids=["32", "18", "8"])
def test_equalize_and_solarize_are_exact(images, device):
    thresholds = FACTORS * 255  # torchvision refuses more, Pillow inverts nothing there
    equalized = colors.equalize(levels_of(images, device))
    solarized = colors.solarize(levels_of(images, device), per_image(thresholds, device))
    for reference in (on_pillow, on_tensors):
        assert_close(equalized, reference(images, lambda image, row: F.equalize(image)), levels=0, share=0)
        theirs = reference(images, lambda image, row: F.solarize(image, float(thresholds[row])))
        assert_close(solarized, theirs, levels=0, share=0)


def test_solarize_inverts_from_the_threshold_on():
    levels = torch.tensor([0.0, 99.0, 100.0, 101.0, 255.0]).view(1, 1, 1, 5)
    for threshold, expected in (
        (100.0, [0, 99, 155, 154, 0]),
        (99.5, [0, 99, 155, 154, 0]),
        (0.01, [0, 156, 155, 154, 0]),
    ):
        assert colors.solarize(levels.clone(), per_image([threshold])).flatten().tolist() == expected


def test_equalize_leaves_flat_channels_alone():
    flat = torch.tensor([0.0, 7.0, 255.0]).view(3, 1, 1, 1).repeat(1, 3, 32, 32)
    assert torch.equal(colors.equalize(flat.clone()), flat)


@pytest.mark.parametrize("device", DEVICES)
def test_gray(device):
    ours = colors.gray(levels_of(tiles(), device))
    assert_close(ours, on_pillow(tiles(), lambda image, row: F.to_grayscale(image, 3)), levels=0, share=0)
    assert_close(ours, on_tensors(tiles(), lambda image, row: F.rgb_to_grayscale(image, 3)), levels=1, share=0.8)


@pytest.mark.parametrize("device", DEVICES)
def test_blur(device):
    sigma = 0.1 + 1.9 * FACTORS
    weights = torch.from_numpy(blur.gaussian_weights(sigma, 31)).to(device)
    ours = blur.blur(levels_of(tiles(), device), weights)
    theirs = on_tensors(tiles(), lambda image, row: F.gaussian_blur(image, 17, float(sigma[row])))
    assert_close(ours, theirs, levels=1, share=0.2)  # ours rounds after each of the two passes


GEOMETRY = [
    # Weights of a resize to a power of two fit into 16 bits, so Pillow's come out exactly.
    (tiles(), CIFAR, "large", 0, 0.0),
    (tiles(), CIFAR, "small", 1, 0.1),
    (digits()[:256], DIGITS, "large", 0, 0.0),
    (digits()[:256], DIGITS, "small", 1, 0.1),
    (photos(), IMAGENET, "large", 1, 0.1),
    (photos(), IMAGENET, "small", 1, 0.1),
]
PLAIN = {"jitter": 0, "solarize": 0, "equalize": 0, "gray": 0, "blur": 0}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("images", "policy", "kind", "levels", "share"), GEOMETRY)
def test_crop_resize_and_flip(images, policy, kind, levels, share, device):
    channels = images.shape[3]
    policy = replace(policy, flip=0.5, mean=(0.0,) * channels, std=(1.0,) * channels, **PLAIN)
    n, size = len(images), policy.crop(kind).size
    drawn = draw(policy, kind, seed=0, task=0, ids=np.arange(n), slots=np.arange(n) % 2, sizes=images.shape[1:3])

    def reference(image, row):
        box = [int(values[row]) for values in (drawn.top, drawn.left, drawn.height, drawn.width)]
        image = F.resized_crop(image, *box, [size, size], antialias=True)
        return F.hflip(image) if drawn.flip[row] else image

    ours = (render(images, drawn, policy, kind, device=device) * 255).round()
    assert_close(ours, on_pillow(images, reference), levels=levels, share=share)
    assert_close(ours, on_tensors(images, reference), levels=1, share=0.35)


def by_the_way_of_a_gpu(images, drawn, policy, kind):
    """Views as another device renders them, from what the host prepares for it; on a CPU it can be run as well."""
    n, cpu = len(images), torch.device("cpu")
    found = staged.empty(n, images.shape[3], policy, kind, cpu)
    sizes = np.broadcast_to(images.shape[1:3], (n, 2))
    staged.develop(ship(staged.uncut(images, sizes, drawn, policy, kind, slice(0, n)), cpu), policy, found)
    return found


@pytest.mark.parametrize(("images", "policy", "kind", "levels", "share"), GEOMETRY)
def test_the_way_of_a_gpu_gives_nearly_the_same_pixels(images, policy, kind, levels, share):
    """At most one level apart, hardly anywhere, and not at all in some sizes."""
    n, channels = len(images), images.shape[3]
    policy = replace(policy, flip=0.5, mean=(0.0,) * channels, std=(1.0,) * channels, **PLAIN)
    drawn = draw(policy, kind, seed=0, task=0, ids=np.arange(n), slots=np.arange(n) % 2, sizes=images.shape[1:3])
    ours = (render(images, drawn, policy, kind) * 255).round()
    theirs = (by_the_way_of_a_gpu(images, drawn, policy, kind) * 255).round().numpy()
    assert_close(ours, theirs, levels=levels, share=share / 20)


@pytest.mark.parametrize("kind", ["large", "strong", "weak", "plain"])
def test_on_equal_crops_a_gpu_colors_frames_and_blurs_alike(kind):
    images = tiles()
    policy, n = replace(CIFAR, blur=0.5), len(images)
    drawn = draw(policy, kind, seed=0, task=0, ids=np.arange(n), slots=np.arange(n) % 2, sizes=images.shape[1:3])
    assert torch.equal(render(images, drawn, policy, kind), by_the_way_of_a_gpu(images, drawn, policy, kind))


def test_weights_shared_by_outputs_sum_to_one():
    """A flat image stays flat whatever the crop, in the darkest and the brightest level."""
    for level in (0, 1, 254, 255):
        images = np.full((64, 61, 83, 3), level, dtype=np.uint8)
        policy = replace(IMAGENET, jitter=0, gray=0, mean=(0.0,) * 3, std=(1.0,) * 3)
        drawn = draw(policy, "small", seed=0, task=0, ids=np.arange(64), slots=np.zeros(64, int), sizes=(61, 83))
        views = render(images, drawn, policy, "small")
        assert torch.equal(views, torch.full_like(views, level) / 255)


def test_weighted_sums_are_integers_that_float32_holds():
    """The invariant behind all bit-identity: then no order of additions can round."""
    lengths = np.array([1, 2, 7, 18, 27, 32, 97, 341, 1000, 2304])
    sets = [crops.triangle_taps(np.arange(10), lengths, np.full(10, size), size).weights for size in (18, 32, 96, 224)]
    sets.append(blur.gaussian_weights(np.linspace(0.1, 2.0, 50), 31) * 2.0**16)
    for weights in sets:
        assert (weights == np.rint(weights)).all() and (weights >= 0).all()
        sums = weights.astype(np.int64).sum(axis=-1)
        assert 255 * sums.max() + 2**15 < 2**24  # with the half that rounding adds
        assert np.abs(sums - 2**16).max() <= max(2, weights.shape[-1] / 2)


def test_halves_of_the_weights_fit_into_bfloat16():
    weights = torch.arange(2**16 + 1).float()
    torch.set_float32_matmul_precision("medium")
    try:
        upper, lower = crops._halves(weights)
    finally:
        torch.set_float32_matmul_precision("highest")
    for half in (upper, lower):
        assert torch.equal(half, half.bfloat16().float())
    assert torch.equal(crops._joined([upper, lower]), weights)
    assert len(crops._halves(weights)) == 1


@pytest.mark.parametrize("device", DEVICES)
def test_whole_recipe(device):
    """All steps of the 32-pixel recipe in sequence, for drawn parameters; only hue is not Pillow's."""
    drawn = draw(CIFAR, "large", seed=4, task=2, ids=np.arange(COUNT), slots=np.zeros(COUNT, int), sizes=(32, 32))

    def on_hue(image, turn):
        return Image.fromarray(turned_exactly(np.array(image)[None], turn)[0].transpose(1, 2, 0))

    adjust = (F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, on_hue)

    def reference(image, row):
        box = [int(values[row]) for values in (drawn.top, drawn.left, drawn.height, drawn.width)]
        image = F.resized_crop(image, *box, [32, 32])
        image = F.hflip(image) if drawn.flip[row] else image
        if drawn.jitter[row]:
            for number in drawn.order[row]:
                image = adjust[number](image, float(getattr(drawn, colors.JITTERS[number])[row]))
        image = F.solarize(image, float(drawn.solarize[row])) if drawn.solarize[row] < 256 else image
        return F.equalize(image) if drawn.equalize[row] else image

    theirs = torch.from_numpy(on_pillow(tiles(), reference)).float() / 255
    theirs = F.normalize(theirs, CIFAR.mean, CIFAR.std)
    ours = render(tiles(), drawn, CIFAR, "large", device=device).cpu()
    assert (ours == theirs).float().mean() > 0.999
    assert (ours - theirs).abs().mean() < 1e-4


@pytest.mark.parametrize("device", DEVICES)
def test_plain_images(device):
    levels = torch.from_numpy(tiles()).permute(0, 3, 1, 2).float() / 255
    assert torch.equal(plain(tiles(), CIFAR, device=device).cpu(), F.normalize(levels, CIFAR.mean, CIFAR.std))
    policy = replace(IMAGENET, mean=(0.0,) * 3, std=(1.0,) * 3)
    for images in (photos(), photos()[:, :256, :300], photos()[:, :400, :230], photos()[:, :100, :120]):
        theirs = on_pillow(images, lambda image, row: F.center_crop(F.resize(image, 256), [224, 224]))
        ours = (plain(images, policy, device=device) * 255).round()
        assert_close(ours, theirs, levels=1, share=0.1)
    assert_close(
        (plain(photos()[:, :256, :341], policy, device=device) * 255).round(),
        on_pillow(photos()[:, :256, :341], lambda image, row: F.center_crop(image, [224, 224])),
        levels=0,
        share=0,
    )
