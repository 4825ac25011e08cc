"""Plain and weak views: squares cut from the image as evaluation sees it, in a black frame."""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F


def plain_shapes(sizes: np.ndarray, size: int) -> np.ndarray:
    """Return height and width [n, 2] that images of these sizes [n, 2] are resized to, of which the center is kept.

    An image of `size` pixels stays as it is; of any other one the short side becomes 256/224 of that.
    """
    short = np.where((sizes == size).all(axis=1), size, round(size * 256 / 224))[:, None]
    return short * sizes // sizes.min(axis=1, keepdims=True)


def cut(plain: Tensor, top: np.ndarray, left: np.ndarray, frame: int) -> Tensor:
    """Cut squares from plain images in a frame, both uint8 [n, size, size, C].

    top, left: integers [n] in 0..2 frame, (frame, frame) being the plain image itself.
    """
    if not frame:
        return plain
    size = plain.shape[1]
    framed = F.pad(plain, (0, 0, frame, frame, frame, frame))
    places = zip(framed, top.tolist(), left.tolist(), strict=True)
    return torch.stack([image[row : row + size, column : column + size] for image, row, column in places])
