"""Which of an image's stored views are shown: at random, or in turns through all of them.

Both are pure functions of a key and of the number of the moment, as all random choices are.
"""

from collections.abc import Callable

import numpy as np

from nncsl.data.rng import uniforms, words


def at_random(key: int, ids: np.ndarray, moments: np.ndarray, size: int, count: int) -> np.ndarray:
    """Return ``count`` different ones of each image's ``size`` views, whatever was shown before: int64 [n, count]."""
    u = uniforms(key, ids, moments, draws=max(count, 1))
    picks = np.zeros((len(ids), count), np.int64)
    for k in range(count):
        pick = (u[:, k] * (size - k)).astype(np.int64)
        for earlier in np.sort(picks[:, :k], axis=1).T:
            pick += pick >= earlier
        picks[:, k] = pick
    return picks


def in_turns(key: int, ids: np.ndarray, moments: np.ndarray, size: int, count: int) -> np.ndarray:
    """Return the ``count`` views of each image's ``size`` whose turn it is: int64 [n, count], different ones.

    The moments of a turn show all views of an image, each once, in an order of the image and the turn; where ``count``
    does not divide ``size``, the last moment of a turn is filled up from the turn's beginning. So an image whose
    moments are consecutive shows its views equally often; one that skips some does in the long run.
    """
    turns, places = np.divmod(moments, max(1, -(-size // max(count, 1))))
    orders = np.argsort(words(key, ids, turns, draws=size), axis=1, kind="stable")
    return np.take_along_axis(orders, (places[:, None] * count + np.arange(count)) % size, axis=1)


class Showings:
    """How often each image was shown in the steps before: counted from what every step shows.

    What is remembered only saves time: a step that does not follow the one before is counted anew from the first.
    """

    def __init__(self, images: np.ndarray, shown: Callable[[int, int], np.ndarray]) -> None:
        """images: all there are, sorted; shown: the images of a step, by phase and number, repeated as they are."""
        self._images, self._shown = images, shown
        self._counted = (0, 0, np.zeros(len(images), np.int64))

    def before(self, phase: int, number: int, ids: np.ndarray) -> np.ndarray:
        """Return how often these images were shown in the phase's steps before ``number``: int64 [n]."""
        at, done, counts = self._counted
        if at != phase or done > number:
            done, counts = 0, np.zeros_like(counts)
        for step in range(done, number):
            places = np.searchsorted(self._images, self._shown(phase, step))
            counts = counts + np.bincount(places, minlength=len(counts))
        self._counted = (phase, number, counts)
        return counts[np.searchsorted(self._images, ids)]
