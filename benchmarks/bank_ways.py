"""Ways of keeping the rows of a bank in fewer bytes: codecs, means of an image's views, means of classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from nncsl.featurebank.codecs import CENTROIDS, ProductQuantizer, make_codec

_FP16 = 2
_STEP = 0.9957  # of four levels for normally distributed numbers, in standard deviations: the least squared error


class Rows(NamedTuple):
    """A bank's rows: features [n, D], ids of images and classes [n]; class -1: of an unlabeled image."""

    features: Tensor
    ids: np.ndarray
    classes: np.ndarray


class Kept(NamedTuple):
    """What a way of keeping makes of the rows, [n, D], and bytes of each: keys not counted, shared parts divided."""

    features: Tensor
    row_bytes: float


def by_codec(rows: Rows, name: str) -> Kept:
    """Keep every row as one of the bank's codecs does."""
    codec, shared = make_codec(name, rows.features.shape[1]), 0.0
    if isinstance(codec, ProductQuantizer):
        codec.train(rows.features)
        shared = CENTROIDS * codec.dim * torch.float32.itemsize / len(rows.features)
    values, scales = codec.encode(rows.features)
    decoded = codec.decode(
        torch.from_numpy(values), None if scales is None else torch.from_numpy(scales).float().unsqueeze(1)
    )
    return Kept(decoded, codec.row_bytes + shared)


def two_bits(features: Tensor) -> Tensor:
    """Round to four levels in equal steps, by each row's standard deviation, which takes 2 bytes of its own."""
    step = (features.square().mean(1, keepdim=True).sqrt() * _STEP).half().float().clamp_min(1e-12)
    return ((features / step - 0.5).round().clamp(-2, 1) + 0.5) * step


def in_two_bits(rows: Rows) -> Kept:
    """Keep every row in two bits an entry, and a scale."""
    return Kept(two_bits(rows.features), rows.features.shape[1] / 4 + _FP16)


def image_means(rows: Rows) -> Kept:
    """Keep the mean of each image's views in fp16, for all of them."""
    images, place = np.unique(rows.ids, return_inverse=True)
    return _means(rows.features, place, len(images))


def class_means(rows: Rows) -> Kept:
    """Keep the mean of each class's views in fp16, for all of them; rows of unlabeled images as they are.

    The bytes are those of a memory image's view.
    """
    known = rows.classes >= 0
    classes, place = np.unique(rows.classes[known], return_inverse=True)
    means = _means(rows.features[torch.from_numpy(known)], place, len(classes))
    features = rows.features.clone()
    features[torch.from_numpy(known)] = means.features
    return Kept(features, means.row_bytes)


def beside_means(rows: Rows, how: str) -> Kept:
    """Keep the mean of each image's views in fp16, and how each view differs from it as a codec or in two bits."""
    means = image_means(rows)
    difference = rows._replace(features=rows.features - means.features)
    kept = in_two_bits(difference) if how == "2 bit" else by_codec(difference, how)
    return Kept(means.features + kept.features, means.row_bytes + kept.row_bytes)


def _means(features: Tensor, place: np.ndarray, count: int) -> Kept:
    places = torch.from_numpy(place)
    sums = torch.zeros(count, features.shape[1]).index_add_(0, places, features)
    means = (sums / torch.bincount(places, minlength=count)[:, None]).half().float()
    return Kept(means[places], _FP16 * features.shape[1] * count / len(features))


WAYS: dict[str, Callable[[Rows], Kept]] = {
    **{name: lambda rows, name=name: by_codec(rows, name) for name in ("fp16", "int8", "int4", "pq64", "pq32")},  # type: ignore[misc]
    "2 bit": in_two_bits,
    **{
        f"image's mean + {how}": lambda rows, how=how: beside_means(rows, how)  # type: ignore[misc]
        for how in ("int8", "int4", "2 bit")
    },
    "image's mean": image_means,
    "class's mean for memory images": class_means,
}
