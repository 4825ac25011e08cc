"""The key index against a dict, asked for every near miss."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nncsl.featurebank.keys import GrowingKeys, KeyIndex

ENDS = [-(2**63), -(2**62), -1, 0, 2**41, 2**62, 2**63 - 1]
SLOTS = st.one_of(st.integers(0, 5), st.sampled_from([1000, 2**31 - 1]))


def arrays(keys):
    return np.array([k[0] for k in keys], np.int64), np.array([k[1] for k in keys], np.int64)


def near_misses(keys):
    """Every key, its neighbors, and those that would pack into the same number if a range were not checked."""
    ids = {i + d for i, _ in keys for d in (-1, 0, 1)} | set(ENDS)
    widest = max(slot for _, slot in keys) + 1
    slots = {s + d for _, s in keys for d in (-1, 0, 1)} | {widest, -widest, 2**40, -(2**63)}
    return [(i, s) for i, s in itertools.product(ids, slots) if -(2**63) <= i < 2**63]


@pytest.mark.parametrize(
    "ids", [st.integers(0, 9), st.integers(100, 140), st.integers(-(2**45), 2**45), st.sampled_from(ENDS)]
)
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_finds_exactly_what_is_there(ids, data):
    keys = data.draw(st.lists(st.tuples(ids, SLOTS), min_size=1, max_size=12, unique=True))
    index, rows = KeyIndex(*arrays(keys)), {key: row for row, key in enumerate(keys)}
    assert len(index.duplicates) == 0
    asked = near_misses(keys)
    assert index.find(*arrays(asked)).tolist() == [rows.get(key, -1) for key in asked]
    for key in asked[:200]:  # alone, so that no neighbor that is farther out makes the whole batch suspicious
        assert index.find(*arrays([key])).tolist() == [rows.get(key, -1)]
    again = [*keys, keys[0]]
    assert len(KeyIndex(*arrays(again)).duplicates) >= 1


@settings(max_examples=50, deadline=None)
@given(batches=st.lists(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3)), max_size=8), max_size=20))
def test_growing_keys_remember_every_batch(batches):
    growing, known = GrowingKeys(), set()
    for batch in batches:
        fresh = sorted(set(batch) - known)
        ids, slots = arrays(batch)
        assert growing.holds(ids, slots).tolist() == [key in known for key in batch]
        if fresh:
            growing.add(*arrays(fresh), KeyIndex(*arrays(fresh)))
            known |= set(fresh)
    assert len(growing._parts) <= 6
