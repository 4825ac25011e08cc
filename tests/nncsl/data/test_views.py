"""A view depends on its key alone: not on the batch, the order, the process, the threads or any global state."""

import hashlib
import os
import random
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from nncsl.data.views import KINDS, Crop, draw, make_views, plain, render
from tests.nncsl.data.view_samples import CIFAR, DEVICES, DIGITS, IMAGENET, digits, photos, tiles

IDS = np.arange(256) * 37 + 5
SLOTS = np.arange(256) % 4
KEY = {"seed": 3, "task": 1}
# All operations at once, so that none can hide.
BUSY = replace(CIFAR, gray=0.2, blur=0.5)
LEVELS = replace(BUSY, mean=(0.0,) * 3, std=(1 / 255,) * 3)


def cifar_views(rows=slice(None), kind="large", device="cpu", policy=BUSY):
    return make_views(tiles()[rows], IDS[rows], SLOTS[rows], policy=policy, kind=kind, device=device, **KEY)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
def test_pixels_do_not_depend_on_batch_size_or_threads(kind, device):
    whole = cifar_views(kind=kind, device=device)
    threads = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            for batch in (1, 2, 3, 7, 64, 256):
                stop = 256 if batch > 7 else 21
                parts = [cifar_views(slice(at, min(at + batch, stop)), kind, device) for at in range(0, stop, batch)]
                assert torch.equal(torch.cat(parts), whole[:stop]), (count, batch)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("kind", ["large", "small", "weak", "plain"])
def test_large_images_do_not_depend_on_batch_size_either(kind):
    images = np.concatenate([photos()[:, :256, :341], photos()[:, 100:356, 200:541], photos()[:, -256:, -341:]])
    ids, slots = np.arange(6), np.arange(6) % 2
    whole = make_views(images, ids, slots, policy=IMAGENET, kind=kind, **KEY)
    assert whole.shape == (6, 3, IMAGENET.crop(kind).size, IMAGENET.crop(kind).size)
    for batch in (1, 4):
        for at in range(0, 6, batch):
            rows = slice(at, at + batch)
            part = make_views(images[rows], ids[rows], slots[rows], policy=IMAGENET, kind=kind, **KEY)
            assert torch.equal(part, whole[rows])


def test_pixels_do_not_depend_on_order():
    order = np.random.default_rng(0).permutation(256)
    assert torch.equal(cifar_views(order), cifar_views()[order])


def test_repeated_keys_give_repeated_views():
    rows = np.array([7, 3, 7, 7])
    views = cifar_views(rows)
    assert torch.equal(views[0], views[2]) and torch.equal(views[0], views[3])
    assert not torch.equal(views[0], views[1])


@pytest.mark.parametrize("part", ["seed", "task", "ids", "slots", "kind"])
def test_every_part_of_the_key_matters(part):
    key = {"seed": 3, "task": 1, "ids": IDS, "slots": SLOTS, "kind": "large"}
    other = dict(key)
    other[part] = "support" if part == "kind" else key[part] + 1
    first, second = (draw(CIFAR, chosen.pop("kind"), sizes=(32, 32), **chosen) for chosen in (dict(key), dict(other)))
    assert (first.hue != second.hue).all()
    first_views, second_views = (make_views(tiles(), policy=CIFAR, **chosen) for chosen in (key, other))
    same = [torch.equal(a, b) for a, b in zip(first_views, second_views, strict=True)]
    assert sum(same) < 0.05 * len(same)  # some tiles are pure sky


def test_another_process_renders_the_same_bits():
    script = (
        "import hashlib\n"
        "from tests.nncsl.data.test_views import KINDS, cifar_views\n"
        "for kind in KINDS:\n"
        "    print(hashlib.sha256(cifar_views(slice(11, 150, 3), kind).numpy().tobytes()).hexdigest())\n"
    )
    environment = os.environ | {"OMP_NUM_THREADS": "2", "PYTHONHASHSEED": "17"}
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    here = [hashlib.sha256(cifar_views(slice(11, 150, 3), kind).numpy().tobytes()).hexdigest() for kind in KINDS]
    assert result.stdout.split() == here


def test_global_generators_are_neither_used_nor_moved():
    def states():
        return (
            random.getstate(),
            np.random.get_state()[1].tolist(),
            np.random.get_state()[2],
            torch.get_rng_state().tolist(),
        )

    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    before = states()
    first = cifar_views()
    assert states() == before
    random.seed(2), np.random.seed(2), torch.manual_seed(2)
    assert torch.equal(cifar_views(), first)


def test_autocast_default_dtype_and_matmul_precision_change_nothing():
    expected = cifar_views()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(cifar_views(), expected)
    try:
        torch.set_float32_matmul_precision("medium")  # takes the path of hardware with bfloat16 or TF32 products
        assert torch.equal(cifar_views(), expected)
    finally:
        torch.set_float32_matmul_precision("highest")
    try:
        torch.set_default_dtype(torch.float64)
        views = cifar_views()
    finally:
        torch.set_default_dtype(torch.float32)
    assert views.dtype == torch.float32 and torch.equal(views, expected)
    assert not views.requires_grad


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", KINDS)
def test_devices_render_nearly_the_same_pixels(kind):
    """Small crops may be one level apart, all others are equal; colors and blur are the same on the same crops."""
    if kind != "small":
        assert torch.equal(cifar_views(kind=kind), cifar_views(kind=kind, device="cuda").cpu())
    else:
        uncolored = replace(CIFAR, jitter=0, solarize=0, equalize=0, mean=(0.0,) * 3, std=(1 / 255,) * 3)
        apart = cifar_views(kind=kind, policy=uncolored) - cifar_views(kind=kind, policy=uncolored, device="cuda").cpu()
        assert apart.abs().max() < 1.01 and (apart.abs() > 0.5).float().mean() < 0.01


@pytest.mark.parametrize("capability", ["default", "avx2"])
def test_processors_without_wide_instructions_render_the_same_levels(capability):
    """What torch computes with when it finds no AVX2 or no AVX-512 is the same arithmetic."""
    script = (
        "import hashlib\n"
        "from tests.nncsl.data.test_views import LEVELS, cifar_views\n"
        "views = cifar_views(kind='small', policy=LEVELS)\n"
        "print(hashlib.sha256(views.round().byte().numpy().tobytes()).hexdigest())\n"
    )
    environment = os.environ | {"ATEN_CPU_CAPABILITY": capability}
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    here = cifar_views(kind="small", policy=LEVELS).round().byte().numpy()
    assert result.stdout.strip() == hashlib.sha256(here.tobytes()).hexdigest()


@pytest.mark.parametrize("device", DEVICES)
def test_padding_is_never_seen(device):
    images = tiles(64)
    padded = np.full((64, 50, 45, 3), 255, dtype=np.uint8)
    padded[:, :32, :32] = images
    sizes = np.full((64, 2), 32)
    for policy in (BUSY, replace(BUSY, large=Crop(2, 24, (0.2, 1.0)))):
        for kind in KINDS:
            key = {"policy": policy, "kind": kind, "device": device, **KEY}
            assert torch.equal(
                make_views(padded, IDS[:64], SLOTS[:64], sizes=sizes, **key),
                make_views(images, IDS[:64], SLOTS[:64], **key),
            )
        assert torch.equal(plain(padded, policy, sizes=sizes, device=device), plain(images, policy, device=device))


def test_images_of_different_sizes_share_a_batch():
    sizes = np.array([[32, 32], [17, 50], [50, 20], [9, 9]])
    images = np.zeros((4, 50, 50, 3), dtype=np.uint8)
    for image, (height, width) in zip(images, sizes, strict=True):
        image[:height, :width] = photos()[0, 200 : 200 + height, 300 : 300 + width]
    together = make_views(images, IDS[:4], SLOTS[:4], policy=BUSY, kind="small", sizes=sizes, **KEY)
    evaluated = plain(images, BUSY, sizes=sizes)
    for row, (height, width) in enumerate(sizes):
        alone = images[row : row + 1, :height, :width]
        expected = make_views(alone, IDS[row : row + 1], SLOTS[row : row + 1], policy=BUSY, kind="small", **KEY)
        assert torch.equal(together[row], expected[0])
        assert torch.equal(evaluated[row], plain(alone, BUSY)[0])


def test_tensors_and_read_only_arrays_are_images_too(tmp_path, recwarn):
    expected = cifar_views()
    key = {"policy": BUSY, "kind": "large", **KEY}
    assert torch.equal(
        make_views(torch.from_numpy(tiles()), torch.from_numpy(IDS), torch.from_numpy(SLOTS), **key), expected
    )
    np.save(tmp_path / "images.npy", tiles())
    mapped = np.load(tmp_path / "images.npy", mmap_mode="r")
    assert torch.equal(make_views(mapped, IDS, SLOTS, **key), expected)
    transposed = tiles().transpose(0, 3, 1, 2).copy().transpose(0, 2, 3, 1)
    assert torch.equal(make_views(transposed, IDS, SLOTS, **key), expected)
    assert not recwarn.list


def test_digits_are_only_cropped():
    images = digits()[:200]
    views = make_views(images, np.arange(200), np.zeros(200, int), policy=DIGITS, kind="large", **KEY)
    assert views.shape == (200, 1, 8, 8)
    gray_levels = torch.from_numpy(images).permute(0, 3, 1, 2).float()
    assert torch.equal(plain(images, DIGITS), (gray_levels / 255 - 0.3) / 0.37)
    colorful = replace(DIGITS, color=1.0, jitter=1.0, solarize=1.0, equalize=1.0, gray=1.0)
    assert torch.equal(
        make_views(images, np.arange(200), np.zeros(200, int), policy=colorful, kind="large", **KEY), views
    )


def test_empty_batches_give_empty_views():
    for kind in KINDS:
        views = make_views(tiles()[:0], IDS[:0], SLOTS[:0], policy=CIFAR, kind=kind, **KEY)
        assert views.shape == (0, 3, CIFAR.crop(kind).size, CIFAR.crop(kind).size)
    assert plain(tiles()[:0], CIFAR).shape == (0, 3, 32, 32)


def test_fingerprint_follows_what_decides_pixels():
    same = replace(CIFAR, large=Crop(8, 32, (0.75, 1)), mean=list(CIFAR.mean), flip=0.5)
    assert same.fingerprint() == CIFAR.fingerprint() and len(CIFAR.fingerprint()) == 64
    changes = [
        {"large": Crop(2, 32, (0.7, 1.0))},
        {"small": Crop(2, 20, (0.3, 0.75))},
        {"small": Crop(2, 18, (0.3, 0.75), (0.5, 2.0))},
        {"mean": (0.4914, 0.4822, 0.4466)},
        {"std": (0.3, 0.3, 0.3)},
        *({name: 0.3} for name in ("flip", "color", "jitter", "solarize", "equalize", "gray", "blur")),
    ]
    prints = {replace(CIFAR, **change).fingerprint() for change in changes} | {CIFAR.fingerprint()}
    assert len(prints) == len(changes) + 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"flip": 1.5}, "flip .* 1.5"),
        ({"color": -1.0}, "color .* -1.0"),
        ({"std": (0.1, 0.0, 0.1)}, "std"),
        ({"mean": (0.5,)}, "mean"),
    ],
)
def test_impossible_policies_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        replace(CIFAR, **change)


@pytest.mark.parametrize(
    "arguments", [(2, 0, (0.5, 1.0)), (2, 32, (0.0, 1.0)), (2, 32, (0.9, 0.5)), (2, 32, (0.5, 1), (0, 1))]
)
def test_impossible_crops_are_refused(arguments):
    with pytest.raises(ValueError, match="crop"):
        Crop(*arguments)


def test_wrong_arguments_are_named():
    key = {"policy": CIFAR, "kind": "large", **KEY}
    with pytest.raises(ValueError, match="float32"):
        make_views(tiles().astype(np.float32), IDS, SLOTS, **key)
    with pytest.raises(ValueError, match="3 channels, the images have 1"):
        make_views(digits()[:256], IDS, SLOTS, **key)
    with pytest.raises(ValueError, match=r"\(256,\) and \(255,\)"):
        make_views(tiles(), IDS, SLOTS[1:], **key)
    with pytest.raises(ValueError, match="one of large, small, support, weak, strong, plain, got 'tiny'"):
        make_views(tiles(), IDS, SLOTS, **(key | {"kind": "tiny"}))
    with pytest.raises(ValueError, match=r"heights in 1\.\.32"):
        make_views(tiles(), IDS, SLOTS, sizes=np.full((256, 2), 33), **key)
    drawn = draw(CIFAR, "large", ids=IDS, slots=SLOTS, sizes=(64, 64), **KEY)
    with pytest.raises(ValueError, match="drawn for other sizes"):
        render(tiles(), drawn, CIFAR, "large")
    with pytest.raises(ValueError, match="256 images"):
        render(tiles(), drawn[:3], CIFAR, "large")
    with pytest.raises(ValueError, match="cannot shrink 427 pixels to 2"):
        plain(photos(), replace(CIFAR, large=Crop(2, 2, (0.5, 1.0))))
