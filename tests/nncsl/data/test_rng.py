import numpy as np
import pytest
from scipy import stats

from nncsl.data import rng


def test_published_vectors():
    """Known answers of Philox4x32-10, published with the Random123 library."""
    zero = rng._philox(np.uint64(0), [np.zeros(1, np.uint64)] * 4)
    ones = rng._philox(np.uint64(2**64 - 1), [np.full(1, 0xFFFFFFFF, np.uint64)] * 4)
    assert [int(w[0]) for w in zero] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert [int(w[0]) for w in ones] == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


def test_a_number_depends_on_its_address_alone():
    ids, slots = np.array([5, 9, 2**40, 5]), np.array([0, 3, 1, 7])
    together = rng.uniforms(11, ids, slots, draws=9)
    for row, (i, s) in enumerate(zip(ids, slots, strict=True)):
        assert np.array_equal(together[row : row + 1], rng.uniforms(11, np.array([i]), np.array([s]), draws=9))
    assert np.array_equal(together[::-1], rng.uniforms(11, ids[::-1], slots[::-1], draws=9))
    assert np.array_equal(together[:, :3], rng.uniforms(11, ids, slots, draws=3))


def test_nothing_asked_nothing_drawn():
    assert rng.words(1, np.zeros(0, int), draws=3).shape == (0, 3)
    assert len(rng.permutation(1, 0)) == 0


def test_streams_and_addresses_differ():
    keys = {rng.stream_key(*parts) for parts in [(0, "a"), (0, "b"), (1, "a"), ("0", "a"), (0, "a", 0), (0, "a0")]}
    assert len(keys) == 6
    drawn = rng.words(3, np.repeat(np.arange(100), 50), np.tile(np.arange(50), 100), draws=4)
    assert len(np.unique(drawn.ravel())) > 19_990  # 20,000 words: about 0.05 collisions expected


@pytest.mark.parametrize("axis", ["ids", "slots", "draws"])
def test_uniform_along_every_axis(axis):
    n = 200_000
    sample = {
        "ids": lambda: rng.uniforms(1, np.arange(n), draws=1)[:, 0],
        "slots": lambda: rng.uniforms(1, np.zeros(n, int), np.arange(n), draws=1)[:, 0],
        "draws": lambda: rng.uniforms(1, np.zeros(1, int), draws=n)[0],
    }[axis]()
    assert 0 < sample.min() < sample.max() < 1
    assert stats.kstest(sample, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(sample[:-1], sample[1:])[0, 1]) < 0.01


def test_permutation_is_one_and_stable_over_platforms():
    order = rng.permutation(rng.stream_key(0, "x"), 1000)
    assert sorted(order) == list(range(1000))
    assert not np.array_equal(order, rng.permutation(rng.stream_key(1, "x"), 1000))
    assert rng.permutation(7, 6).tolist() == [2, 4, 5, 3, 1, 0]
    assert rng.permutation(rng.stream_key(0, "x"), 6).tolist() == [1, 2, 4, 3, 0, 5]


def test_many_permutations_at_once_are_those_of_their_keys():
    keys, sizes = [rng.stream_key(i) for i in range(5)], [5, 1, 0, 7, 300]
    for order, key, size in zip(rng.permutations(keys, sizes), keys, sizes, strict=True):
        assert np.array_equal(order, rng.permutation(key, size)) and sorted(order) == list(range(size))
