"""One copy to the device: what arrives is what was sent, whatever it was made of."""

from typing import NamedTuple

import numpy as np
import pytest
import torch

from nncsl.benchmarks.stand_in import DEVICE, OnDevice, standing_in, unwrapped
from nncsl.steps.transfer import constant, joined, send, ship


class Pair(NamedTuple):
    first: object
    second: object


def cargo():
    odd = np.arange(7, dtype=np.uint8)
    return {
        "odd": odd,
        "again": odd,
        "pair": Pair(np.random.default_rng(0).random((3, 5, 2), dtype=np.float32), [np.array(5), None, "text"]),
        "window": np.arange(60).reshape(3, 4, 5)[:, 1:3, ::2],
        "nothing": np.zeros((0, 4), np.float16),
        "repeated": np.broadcast_to(np.arange(3), (2, 3)),
        "truths": (np.array([True, False]), slice(2)),
    }


@pytest.mark.parametrize("device", [torch.device("cpu"), DEVICE], ids=["here", "there"])
def test_everything_arrives_in_its_type_and_shape_by_one_copy(device):
    with standing_in() as watch:
        arrived = ship(cargo(), device)
    assert watch.count("copy") == (device == DEVICE) and not watch.count("wait")
    assert isinstance(arrived["pair"], Pair) and arrived["pair"].second[1:] == [None, "text"]
    assert arrived["truths"][1] == slice(2)

    def pairs(sent, got):
        if isinstance(sent, np.ndarray):
            yield sent, got
        elif isinstance(sent, dict):
            for key in sent:
                yield from pairs(sent[key], got[key])
        elif isinstance(sent, tuple | list):
            for one, other in zip(sent, got, strict=True):
                yield from pairs(one, other)

    found = list(pairs(cargo(), arrived))
    assert len(found) == 8
    for sent, got in found:
        assert isinstance(got, OnDevice) == (device == DEVICE)
        values = unwrapped(got).numpy()
        assert values.dtype == sent.dtype and values.shape == sent.shape and np.array_equal(values, sent)


def test_what_is_sent_twice_travels_once():
    pixels = np.zeros(1000, np.uint8)
    with standing_in():
        arrived = ship([pixels, pixels], DEVICE)
    assert arrived[0] is arrived[1]


def test_constants_stay_and_random_numbers_do_not_wait():
    constant.cache_clear()
    with standing_in() as watch:
        first, second = (constant((3, 1), DEVICE, torch.int64) for _ in range(2))
        drawn = send(torch.arange(3), DEVICE)
    assert first is second and unwrapped(first).tolist() == [3, 1] and unwrapped(drawn).tolist() == [0, 1, 2]
    assert watch.count("copy") == 2
    constant.cache_clear()


def test_constants_of_equal_values_keep_their_types():
    """To a cache False is 0: a mask must not come back as numbers."""
    cpu = torch.device("cpu")
    numbers, mask = constant((0, 1), cpu, torch.int64), constant((False, True), cpu, torch.bool)
    assert numbers.dtype == torch.int64 and mask.dtype == torch.bool


def test_rows_that_stand_together_are_joined_without_a_copy():
    rows = torch.arange(24.0).view(8, 3)
    first, second, third = rows.split([2, 0, 6])
    whole = joined([first, second, third])
    assert torch.equal(whole, rows) and whole.data_ptr() == rows.data_ptr()
    apart = [[third, first], [first, first], [first, rows[3:]], [first.clone(), third], [rows[:, :1], rows[:, 1:2]]]
    for parts in apart:
        assert torch.equal(joined(parts), torch.cat(parts))
        assert joined(parts).untyped_storage().data_ptr() != rows.untyped_storage().data_ptr()
