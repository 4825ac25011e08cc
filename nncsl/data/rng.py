"""Random numbers as a pure function of a key and a counter: Philox4x32-10 over whole arrays.

A stateful generator makes a draw depend on every draw before it, hence on batch order, workers and restarts.
Here a number depends on its address alone, so a view, a split or a permutation can be recomputed anywhere.
The integers are the same on every platform and with every version of numpy (numpy promises its bit
generators, not its samplers).
"""

import hashlib
from collections.abc import Sequence

import numpy as np

_ROUNDS = 10
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


def stream_key(*parts: int | str) -> int:
    """64-bit key of a named stream, e.g. ``stream_key(seed, "view", task, "large")``."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def words(key: np.ndarray | int, ids: np.ndarray, slots: np.ndarray | int = 0, *, draws: int) -> np.ndarray:
    """Random 32-bit words, one row per (key, id, slot).

    key: one, or uint64 [n]; ids: [n] integers in [0, 2^63); slots: [n] or one integer in [0, 2^32).
    Returns uint64 [n, draws], each below 2^32.
    """
    keys = np.asarray(key, dtype=np.uint64).reshape(-1, 1)
    ids = np.asarray(ids).astype(np.uint64)[:, None]
    slots = np.broadcast_to(np.asarray(slots).astype(np.uint64).reshape(-1, 1), ids.shape)
    blocks = np.arange(-(-draws // 4), dtype=np.uint64)[None, :]
    shape = (ids.shape[0], blocks.shape[1])
    counter = [np.broadcast_to(part, shape) for part in (ids & _LOW, ids >> _SHIFT, slots & _LOW, blocks)]
    return np.stack(_philox(keys, counter), axis=-1).reshape(shape[0], 4 * shape[1])[:, :draws]


def uniforms(key: int, ids: np.ndarray, slots: np.ndarray | int = 0, *, draws: int) -> np.ndarray:
    """Uniform numbers in the open interval (0, 1): float64 [n, draws]; arguments as in :func:`words`."""
    return (words(key, ids, slots, draws=draws) + 0.5) * 2.0**-32


def permutation(key: int, n: int) -> np.ndarray:
    """A random order of 0..n-1: int64 [n]."""
    return permutations([key], [n])[0]


def permutations(keys: Sequence[int], sizes: Sequence[int]) -> list[np.ndarray]:
    """One :func:`permutation` per key and size; many small ones cost little more than one."""
    ids = np.concatenate([np.arange(n) for n in sizes])
    pairs = words(np.repeat(np.array(keys, dtype=np.uint64), sizes), ids, draws=2)
    ranks = (pairs[:, 0] << _SHIFT) | pairs[:, 1]
    return [np.argsort(part, kind="stable") for part in np.split(ranks, np.cumsum(sizes)[:-1])]


def _philox(key: np.ndarray, counter: list[np.ndarray]) -> list[np.ndarray]:
    """Ten rounds of Philox4x32 (Salmon et al., SC 2011) on uint64 arrays that hold 32-bit words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key & _LOW, key >> _SHIFT
    for _ in range(_ROUNDS):
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            (product1 >> _SHIFT) ^ c1 ^ k0,
            product1 & _LOW,
            (product0 >> _SHIFT) ^ c3 ^ k1,
            product0 & _LOW,
        )
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    return [c0, c1, c2, c3]
