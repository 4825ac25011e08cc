"""The same run on any number of ranks: gradients, statistics, memory, bits."""

import numpy as np
import pytest
import torch

from nncsl import methods
from tests.nncsl import rank_work
from tests.nncsl.crew import Crew

ODD = ("unlabeled_batch=25", "labeled_batch=7", "labeled_per_class=1", "bank_codec=fp32")


@pytest.fixture(scope="module")
def crew(tmp_path_factory):
    made = Crew(4, tmp_path_factory.mktemp("crew"))
    yield made
    made.dismiss()


def worst(found, expected):
    """The largest relative difference, and where; both hold the same gradients and buffers."""
    assert found.keys() == expected.keys()
    apart = {}
    for name, value in expected.items():
        if value.size and np.issubdtype(value.dtype, np.floating) and np.isfinite(value).all():
            apart[name] = np.abs(found[name] - value).max() / max(np.abs(value).max(), 1e-2)
        else:
            assert np.array_equal(found[name], value, equal_nan=value.dtype.kind == "f"), name
    name = max(apart, key=apart.get)
    return apart[name], name


def compare(results, bound):
    """Every result against one rank's, passed in the first way; returns how many there were."""
    expected = results[0]
    for rank, found in enumerate(results):
        for (phase, frozen, how, count), values in found.items():
            difference, name = worst(values, expected[phase, frozen, 0, 1])
            assert difference < bound, (rank, phase, frozen, how, count, name, difference)
    return sum(map(len, results))


@pytest.mark.parametrize("method", list(methods.METHODS))
def test_gradients_of_a_step_are_those_of_one_rank(crew, tmp_path, method):
    """In fp64, in every phase, with both BatchNorm policies, on 2 and 3 ranks, with batches that don't divide."""
    own = ("own.unlabeled_batch=5",) if method == "ccic" else ()
    settings = (*ODD, *own, f"method={method}")
    results = crew.run(rank_work.gradients_of_all_counts, settings, tmp_path, count=3)
    phases = {phase for phase, *_ in results[0]}
    bound = 1e-10 if method == "ordisco" else 1e-12  # Adam moves its discriminator within the step: rounding grows
    assert compare(results, bound) == len(phases) * 2 * (3 + 2 + 1)
    trained = max(sum(name.startswith("gradient of") for name in values) for values in results[0].values())
    assert trained > 15  # backbone and head at least


WAYS = ({}, {"micro_batch": 4}, {"micro_batch": 3, "recompute": True, "spill": "disk"}, {"recompute": True})


def test_micro_batches_and_recomputation_change_nothing(crew, tmp_path):
    ways = [{**way, "folder": tmp_path} for way in WAYS]
    results = crew.run(rank_work.gradients_of_all_counts, (*ODD, "method=nncsl"), tmp_path, ways, count=3)
    assert compare(results, 1e-12) == 2 * len(WAYS) * (3 + 2 + 1)


def test_in_single_precision_they_are_equal_to_rounding(crew, tmp_path):
    results = crew.run(
        rank_work.gradients_of_all_counts, (*ODD, "method=nncsl"), tmp_path, ({},), torch.float32, count=3
    )
    assert compare(results, 1e-4) == 2 * (3 + 2 + 1)


@pytest.mark.parametrize("way", [{}, {"micro_batch": 1}])
def test_more_ranks_than_images(crew, tmp_path, way):
    """Two images for four ranks: two ranks have none, and all the same get the gradient of both."""
    settings = ("method=finetune", "labeled_batch=2")
    results = crew.run(rank_work.gradients_of_all_counts, settings, tmp_path, ({}, way), count=4)
    assert compare(results, 1e-12) == 2 * 2 * (4 + 3 + 2 + 1)


SHORT = ("epochs=1", "unlabeled_batch=160", "warmup_epochs=0", "bank_views=1")


def learned(folder):
    """What a run has learned and remembers, as its last checkpoint has it: bytes, without times and memory."""
    saved = torch.load(folder / "run" / "checkpoint" / "state.pt", weights_only=True)
    state = {key: value for key, value in saved.pop("state").items() if key not in ("seconds", "peak_memory")}
    return dict(leaves({**saved, "state": state}))


def leaves(value, name=""):
    if isinstance(value, dict | list | tuple):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in pairs:
            yield from leaves(inner, f"{name}/{key}")
    else:
        yield name, (value.dtype, value.contiguous().numpy().tobytes()) if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize(("mode", "tasks"), [("features", 5), ("model", 2)])
def test_exact_runs_end_with_the_same_bytes_on_1_2_and_4_ranks(crew, tmp_path, mode, tasks):
    """Over all tasks; the first trains BatchNorm, the others hold it; herding chooses the memory."""
    settings = (
        *SHORT,
        f"teacher_mode={mode}",
        f"tasks={tasks}",
        "memory_selection=herding",
        "unlabeled_memory=20",
        "ranks_exact=true",
    )
    found = {}
    for count in (1, 2, 4):
        folder = tmp_path / str(count)
        folder.mkdir()
        ends = crew.run(rank_work.trained, settings, folder, count=count, exact=True)
        assert all(end == ends[0] for end in ends)  # the same weights, and the same memory, on all ranks
        found[count] = learned(folder)
    assert found[1] == found[2] == found[4]


def test_resumed_on_other_numbers_of_ranks_it_ends_the_same(crew, tmp_path):
    """On 2 ranks, then 1, then 3; each time one rank, not always the first, gets a SIGTERM and all stop."""
    settings = (*SHORT, "tasks=2", "epochs=3", "ranks_exact=true")
    whole, pieces = tmp_path / "whole", tmp_path / "pieces"
    whole.mkdir()
    pieces.mkdir()
    crew.run(rank_work.trained, settings, whole, count=1, exact=True)
    stops = [(2, (1, 0, 2), False), (1, (0, 1, 1), True), (3, None, True)]
    for count, stop, go_on in stops:
        ends = crew.run(rank_work.trained, settings, pieces, stop, go_on, count=count, exact=True)
        assert [end is None for end in ends] == [stop is not None] * count
    assert learned(pieces) == learned(whole)


@pytest.mark.parametrize("method", ["pseudoer", "oewc", "ordisco", "ccic", "xder"])
def test_whole_runs_of_methods_with_passes_of_their_own(crew, tmp_path, method):
    """What is computed between steps (guesses, importances, stored logits, means) is the same on every rank."""
    settings = (*SHORT, "tasks=2", f"method={method}", "ranks_exact=true")
    found = {}
    for count in (1, 2):
        folder = tmp_path / str(count)
        folder.mkdir()
        ends = crew.run(rank_work.trained, settings, folder, count=count, exact=True)
        assert all(end == ends[0] for end in ends)
        found[count] = learned(folder)
    assert found[1] == found[2]
