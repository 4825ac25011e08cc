"""Micro-batches and recomputation: less memory, the same outputs, statistics and gradients."""

import copy
import itertools
import json
from dataclasses import replace

import pytest
import torch
from torch import nn

from nncsl import accounting, config, networks, passes, runs
from nncsl.config import NetworkConfig
from nncsl.passes import Passes, moments, spill
from tests.nncsl.scenes import SecondTask

SIZES = (1, 7, 32)


def gradient(network):
    return torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None])


def gradients_of_a_step(scene, teacher, pool, how):
    """Loss and gradient of the scene's first step with a fresh copy of its method, and its network afterwards."""
    method = copy.deepcopy(scene.method)
    losses = scene.losses(method, teacher, 0, 0, pool, passes.forward(method.network, how))
    losses.total.backward()
    return losses, gradient(method), method.network


@pytest.mark.parametrize("mode", ["features", "model", "none"])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-10), (torch.float32, 1e-4)])
def test_micro_batches_give_the_gradient_of_all_losses(small, make_run, mode, dtype, bound, tmp_path):
    scene = SecondTask(small(f"teacher_mode={mode}", "bank_codec=fp32", "labeled_per_class=3"), make_run)
    teacher = scene.teacher()
    pool = teacher.pool(0)
    with torch.no_grad():  # a student that has left its teacher, so that every loss has a gradient
        for p in scene.network.projector.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=torch.Generator().manual_seed(0)))
    scene.method.to(dtype)
    if mode == "model":
        teacher._copy.to(dtype)
    whole, expected, _ = gradients_of_a_step(scene, teacher, pool, Passes())
    assert set(whole.parts) == {"snn", "mem", "lin"} | ({"nnd"} if mode != "none" else set())
    assert expected.abs().max() > 1e-3
    for size, recompute in itertools.product(SIZES, (False, True)):
        losses, found, _ = gradients_of_a_step(scene, teacher, pool, Passes(size, recompute, "device", tmp_path))
        assert losses.total.item() == pytest.approx(whole.total.item(), rel=bound)
        assert ((found - expected).norm() / expected.norm()).item() < bound, (size, recompute)
    teacher.close()


@pytest.mark.parametrize("where", ["device", "disk"])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-10), (torch.float32, 1e-4)])
def test_with_training_batchnorm_statistics_are_the_whole_batchs(small, make_run, where, dtype, bound, tmp_path):
    """The rule of the first task: gradient and running statistics as in one pass, each batch counted once."""
    scene = SecondTask(small("teacher_mode=none", "batchnorm=train"), make_run)
    scene.method.to(dtype)
    teacher = scene.teacher()
    pool = teacher.pool(0)
    whole, expected, reference = gradients_of_a_step(scene, teacher, pool, Passes())
    moved = (reference.stem[1].running_mean - scene.network.stem[1].running_mean).abs().max()
    assert moved > 1e-3
    ways = [Passes(0, True), Passes(7, True, where, tmp_path)]
    ways += [Passes(size, False, where, tmp_path) for size in SIZES]
    for how in ways:
        losses, found, network = gradients_of_a_step(scene, teacher, pool, how)
        assert losses.total.item() == pytest.approx(whole.total.item(), rel=bound)
        assert ((found - expected).norm() / expected.norm()).item() < bound, how
        for (name, a), b in zip(reference.named_buffers(), network.buffers(), strict=True):
            assert torch.allclose(a.double(), b.double(), rtol=bound, atol=bound), (how, name)
    assert list(tmp_path.glob("tmp*")) == []  # the file of spilled values has no name


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("used", ["features", "projections"])
def test_what_a_loss_does_not_use_gets_no_gradient(frozen, used, tmp_path):
    """None, not zeros: with zeros the optimizer would still decay the projector of a purely supervised method."""
    network = small_network(frozen=frozen)
    x = torch.randn(6, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    missing = {}
    for how in (Passes(), Passes(4, False, "disk", tmp_path), Passes(0, True)):
        network.zero_grad(set_to_none=True)
        getattr(passes.forward(network, how)(x), used).square().sum().backward()
        missing[how] = {name for name, p in network.named_parameters() if p.grad is None}
    assert len(set(map(frozenset, missing.values()))) == 1
    assert any(name.startswith("projector.") for name in missing[Passes()]) == (used == "features")


def test_the_imagenet_stem_can_be_cut_too(tmp_path):
    network = small_network(frozen=False, stem="imagenet")
    x = torch.randn(5, 3, 40, 40, generator=torch.Generator().manual_seed(0))
    found = {}
    for size in (0, 2):
        copied = copy.deepcopy(network)
        outputs = passes.forward(copied, Passes(size, False, "device", tmp_path))(x)
        (outputs.features.square().sum() + outputs.projections.sin().sum()).backward()
        found[size] = gradient(copied)
    assert ((found[0] - found[2]).norm() / found[0].norm()).item() < 1e-4


def test_autocast_reaches_the_second_pass():
    """Both passes compute in bfloat16; otherwise the gradient would belong to another function."""
    network = small_network(frozen=True)
    seen = []
    network.blocks[0].conv1.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    with torch.autocast("cpu", torch.bfloat16):
        outputs = passes.forward(network, Passes(3))(torch.randn(5, 3, 12, 12))
    outputs.features.float().sum().backward()
    assert seen == [torch.bfloat16] * 4


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("how", [Passes(3), Passes(0, True), Passes(3, True), Passes(3, False, "disk")])
def test_autocast_combines_with_everything(frozen, how, tmp_path):
    """The gradient of the same function: as near to one pass in bfloat16 as that is to float32, or nearer."""
    network = small_network(frozen=frozen)
    x = torch.randn(7, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    found = []
    for way, lower in ((Passes(), False), (Passes(), True), (replace(how, folder=tmp_path), True)):
        copied, dtypes = copy.deepcopy(network), set()
        copied.blocks[0].conv1.register_forward_hook(lambda m, i, output, seen=dtypes: seen.add(output.dtype))
        with torch.autocast("cpu", torch.bfloat16, enabled=lower):
            outputs = passes.forward(copied, way)(x)
        (outputs.features.float().square().sum() + outputs.projections.float().sin().sum()).backward()
        assert dtypes == {torch.bfloat16 if lower else torch.float32}
        found.append(gradient(copied))
    exact, expected, ours = found
    assert (ours - expected).norm() <= (exact - expected).norm()


def test_memory_shrinks_as_promised(tmp_path):
    """What autograd keeps at the same moment, counted: a micro-batch, block inputs, or next to nothing."""
    x = torch.randn(64, 3, 12, 12)
    kept = {}
    for frozen, how in (
        (True, Passes()),
        (True, Passes(4)),
        (True, Passes(0, True)),
        (False, Passes()),
        (False, Passes(4, False, "disk", tmp_path)),
        (False, Passes(4, False, "device", tmp_path)),
    ):
        network = small_network(frozen=frozen)
        with accounting.saved_activations(network) as tally:
            passes.forward(network, how)(x).projections.sum().backward()
        kept[frozen, how.micro_batch, how.recompute, how.spill] = tally.peak
    assert kept[True, 4, False, "device"] < kept[True, 0, False, "device"] / 6
    assert kept[True, 0, True, "device"] < kept[True, 0, False, "device"] / 2
    assert kept[False, 4, False, "disk"] < kept[False, 0, False, "device"] / 6
    assert kept[False, 4, False, "disk"] < kept[False, 4, False, "device"] < kept[False, 0, False, "device"]


def test_one_image_alone_can_not_train_batchnorm():
    with pytest.raises(ValueError, match="single value per channel"):
        found = moments.Moments()
        found.add(torch.ones(1, 4))
        found.finish(nn.BatchNorm1d(4))


@pytest.mark.parametrize("where", ["device", "host", "disk"])
def test_a_store_gives_back_what_it_took(where, tmp_path):
    store = spill.open_store(where, torch.device("cpu"), tmp_path)
    tensors = [
        torch.randn(3, 5, 4, 4).contiguous(memory_format=torch.channels_last),
        torch.randn(2, 7).to(torch.bfloat16),
        torch.randn(6, 4)[:, ::2],
    ]
    for number, tensor in enumerate(tensors):
        store.put(("x", number), tensor)
    for number, tensor in enumerate(tensors):
        assert torch.equal(store.get(("x", number)), tensor)
        assert torch.equal(store.take(("x", number)), tensor)
    store.put(("y", 0), tensors[0])  # takes the freed place
    assert torch.equal(store.take(("y", 0)), tensors[0])
    with pytest.raises(KeyError):
        store.get(("x", 0))


def test_runs_end_as_one_without_micro_batches_does(small, tmp_path):
    """Whole runs. An epoch in they differ by rounding only (later it has grown); the summary says what was held."""
    ways = {"whole": [], "micro": ["micro_batch=16", "spill=disk"], "recompute": ["recompute=true"]}
    summaries = {name: runs.start(small(*sets), tmp_path / name, quiet=True) for name, sets in ways.items()}
    first = {name: json.loads((tmp_path / name / "metrics.jsonl").read_text().splitlines()[0])["snn"] for name in ways}
    whole = summaries.pop("whole")
    assert set(runs.MEMORY_PARTS) | {"total"} == set(whole["peak_memory"])
    assert whole["peak_memory"]["data"] >= 1297 * 64
    for name, summary in summaries.items():
        assert first[name] == pytest.approx(first["whole"], rel=1e-3)
        assert summary["peak_memory"]["activations"] < 0.6 * whole["peak_memory"]["activations"], name


def small_network(*, frozen, stem="cifar"):
    shape = NetworkConfig(stem=stem, width=8, blocks=(1, 2, 1), hidden=16, projection=8)
    network = networks.build(shape, 3, 10, 0)
    networks.set_training(network, freeze_batchnorm=frozen)
    return network


@pytest.mark.parametrize(
    ("preset", "kind", "expected"),
    [
        ("cifar10", "large", 28),
        ("cifar10-small", "large", 256),
        ("cifar10-small", "small", 256),
        ("imagenet100", "large", 16),
        ("imagenet100", "small", 16),
        ("digits", "large", 256),
    ],
)
def test_passes_without_gradient_are_large_for_small_maps_only(preset, kind, expected):
    settings = config.load(preset, [])
    network = networks.build(settings.network, len(settings.views.mean), 10, seed=0)
    size = settings.views.crop(kind).size
    assert passes.inference_batch(network, size) == expected
    with torch.no_grad():
        first = network.stem[0](torch.zeros(expected, len(settings.views.mean), size, size))
    assert first.nbytes <= 2**23 or expected == 16  # fewer would only make more calls
