"""Plain and weak views: squares cut from the image as evaluation sees it, in a black frame."""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from nncsl.data import crops


def cut(
    images: Tensor | np.ndarray,
    sizes: np.ndarray,
    top: np.ndarray,
    left: np.ndarray,
    *,
    size: int,
    frame: int,
    device: torch.device,
) -> Tensor:
    """Cut squares from plain images in a frame: uint8 [n, H, W, C] -> uint8 [n, size, size, C] on `device`.

    sizes: [n, 2] height and width of each image; top, left: integers [n] in 0..2 frame, (frame, frame) being the plain
    image itself: an image of that size as it is; of any other one the short side is resized to 256/224 of it, then the
    center is cut out.
    """
    short = np.where((sizes == size).all(axis=1), size, round(size * 256 / 224))[:, None]
    resized = short * sizes // sizes.min(axis=1, keepdims=True)
    plain = crops.resize(images, np.zeros_like(sizes), sizes, resized, size, device)
    if not frame:
        return plain
    framed = F.pad(plain, (0, 0, frame, frame, frame, frame))
    places = zip(framed, top.tolist(), left.tolist(), strict=True)
    return torch.stack([image[row : row + size, column : column + size] for image, row, column in places])
