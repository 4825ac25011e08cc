"""CUDA graphs as far as they can be tried without CUDA: who is refused and why, buffers, and what would be captured."""

from dataclasses import replace

import pytest
import torch

from nncsl import methods
from nncsl.batches import Moment
from nncsl.benchmarks.rehearsal import Rehearsal
from nncsl.benchmarks.stand_in import DEVICE
from nncsl.data.catalog import open_data
from nncsl.steps import graphs
from nncsl.steps.arrival import look

CUDA, CPU = torch.device("cuda"), torch.device("cpu")
ALIKE = {"nncsl", "csl", "csl-nofilter", "paws", "pseudoer", "finetune", "oewc", "lwf", "er", "er-ace", "derpp"}
ALIKE |= {"icarl", "foster", "joint", "dsgd", "pshd", "nncsl-plus"}
SHORT = ("unlabeled_fraction=0.1", "bank_views=1", "unlabeled_batch=8", "network.blocks=[1]", "labeled_batch=8")


def method_of(config):
    return methods.build(methods.settled(config), 10)


@pytest.mark.parametrize("name", list(methods.METHODS))
def test_every_method_says_whether_its_steps_are_alike(small, name):
    config = small(f"method={name}")
    reason = graphs.refusal(config, CUDA, method_of(config))
    assert (reason is None) == (name in ALIKE)
    assert reason is None or name in reason
    assert graphs.refusal(config, CPU, method_of(config)) == "the device is cpu"


@pytest.mark.parametrize(("settings", "reason"), [
    (("cuda_graph=off",), "switched off"),
    (("precision=fp16",), "scaler"),
    (("micro_batch=4", "spill=disk"), "spill=disk"),
    (("micro_batch=4", "spill=host"), "spill=host"),
    (("unlabeled_memory=40",), "unlabeled_memory"),
    (("memory_budget=2GB",), "memory_budget"),
    (("micro_batch=4",), None),
    (("precision=bf16",), None),
    (("unlabeled_memory=40", "method=csl-nofilter"), None),
    (("teacher_mode=model",), None),
])  # fmt: skip
def test_settings_that_refuse(small, settings, reason):
    found = graphs.refusal(small(*settings), CUDA, method_of(small(*settings)))
    assert found is None if reason is None else reason in found


def test_hooks_refuse_and_a_method_that_says_nothing_is_refused(small):
    method = method_of(small())
    handle = method.network.stem.register_forward_hook(lambda *_: None)
    assert "hooks" in graphs.refusal(small(), CUDA, method)
    handle.remove()
    assert graphs.refusal(small(), CUDA, method) is None
    own = type("Own", (methods.Method,), {})(method.network, small(), None)
    assert graphs.refusal(small(), CUDA, own).startswith("Own does not say")


def test_who_changes_losses_has_to_say_again_that_steps_are_alike(small):
    er = methods.find("er")
    config = small("method=er")
    network = method_of(config).network
    for body, captured in (({}, True), ({"losses": er.losses}, False),
                           ({"losses": er.losses, "uncaptured": lambda self: ""}, True)):  # fmt: skip
        mine = type("Mine", (er,), body)(network, config, methods.own(config))
        assert (graphs.refusal(config, CUDA, mine) is None) == captured


def test_on_a_cpu_nothing_is_said_and_steps_are_computed_as_ever(small):
    said = []
    method, scaler = method_of(small()), torch.amp.GradScaler("cpu", enabled=False)
    assert not isinstance(graphs.steps_of(method, scaler, CPU, said.append), graphs.Graph) and not said
    fp16 = method_of(small("precision=fp16"))
    assert not isinstance(graphs.steps_of(fp16, scaler, CUDA, said.append), graphs.Graph)
    assert said == ["no CUDA graph: precision=fp16 has a scaler that looks at every step's gradients"]
    assert isinstance(graphs.steps_of(method, scaler, CUDA, said.append), graphs.Graph) and len(said) == 1


def rehearse(small, folder, *settings, device=CPU):
    config = small(*SHORT, *settings)
    return Rehearsal(config, *open_data(config), 1, folder, device)


@pytest.mark.parametrize("settings", [(), ("method=lwf",), ("method=foster",), ("method=derpp",)], ids=str)
def test_a_step_from_refilled_buffers_is_the_step_itself(small, tmp_path, settings):
    """Losses and gradients: what a replay computes is this function of the same buffers."""
    scene = rehearse(small, tmp_path, *settings, "batchnorm=freeze-after-first")
    arguments = scene.method, scene.setup, scene.phase
    steps = [look(*arguments, scene_moment(scene, n), scene.teacher, scene.forward) for n in range(3)]
    buffers = graphs.Buffers(steps[0])
    addresses = [t.data_ptr() for t in graphs.Inputs.of(buffers.step).tensors()]
    state = {name: value.clone() for name, value in scene.method.state_dict().items()}
    for step in (steps[1], steps[2], steps[0]):
        assert graphs.Inputs.of(step).signature() == buffers.signature
        buffers.fill(step)
        found = []
        for each in (buffers.step, step):
            scene.method.load_state_dict(state)
            losses = scene.compute(each)
            found.append((losses, [p.grad for p in scene.method.parameters()]))
        (replayed, gradients), (expected, own) = found
        assert torch.equal(replayed.total, expected.total)
        assert all(torch.equal(replayed.parts[name], expected.parts[name]) for name in expected.parts)
        assert all(torch.equal(replayed.guesses[name], expected.guesses[name]) for name in expected.guesses)
        assert [g is None for g in gradients] == [g is None for g in own]
        assert all(torch.equal(a, b) for a, b in zip(gradients, own, strict=True) if a is not None)
    assert [t.data_ptr() for t in graphs.Inputs.of(buffers.step).tensors()] == addresses


def scene_moment(scene, number):
    return Moment(0, 0, number, number, scene.pool)


def test_other_shapes_are_another_signature(small, tmp_path):
    scene = rehearse(small, tmp_path)
    step = look(scene.method, scene.setup, scene.phase, scene_moment(scene, 0), scene.teacher, scene.forward)
    cut = step._replace(pixels={**step.pixels, "large": step.pixels["large"][:-1]})
    renamed = step._replace(notes={**step.notes, "more": step.notes["old labels"]})
    signatures = {graphs.Inputs.of(each).signature() for each in (step, cut, renamed)}
    assert len(signatures) == 3


@pytest.mark.parametrize("name", ["nncsl", "lwf", "oewc"])
def test_nothing_in_a_captured_step_copies_or_waits(small, tmp_path, name):
    """Both would break the capture; every method is looked at in test_waits.py."""
    scene = rehearse(small, tmp_path, f"method={name}", device=DEVICE)
    scene.step(0)
    watch = scene.step(1)[0]["losses"]
    assert watch.count("operation") > 20 and not watch.count("copy") and not watch.count("wait")


def test_one_line_says_why(small):
    assert "\n" not in graphs.refusal(replace(small(), precision="fp16"), CUDA, method_of(small()))
