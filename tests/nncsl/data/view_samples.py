"""Real images and the policies that the tests of views share."""

from functools import cache

import numpy as np
import torch
from sklearn.datasets import load_digits, load_sample_images

from nncsl.benchmarks.views import POLICIES
from nncsl.data.views import Crop, ViewPolicy

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])

CIFAR, IMAGENET = POLICIES["cifar"], POLICIES["imagenet"]
DIGITS = ViewPolicy(
    large=Crop(2, 8, (0.6, 1.0)),
    small=Crop(2, 6, (0.3, 0.6)),
    flip=0.0,
    color=0.0,
    jitter=0.0,
    solarize=0.0,
    equalize=0.0,
    mean=(0.3,),
    std=(0.37,),
)


@cache
def photos() -> np.ndarray:
    """Two photographs, uint8 [2, 427, 640, 3]."""
    return np.stack(load_sample_images().images)


@cache
def tiles(count: int = 256, size: int = 32) -> np.ndarray:
    """Cuts from the photographs, uint8 [count, size, size, 3]."""
    cuts = [
        photo[top : top + size, left : left + size]
        for top in range(0, 427 - size, size)
        for left in range(0, 640 - size, size)
        for photo in photos()
    ]
    return np.stack(cuts[:count])


@cache
def digits() -> np.ndarray:
    """uint8 [1797, 8, 8, 1]."""
    return (load_digits().images * (255 / 16)).astype(np.uint8)[..., None]
