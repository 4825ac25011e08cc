"""Plain and weak views: squares cut from the image as evaluation sees it, in a black frame.

To resize, frame, cut and flip is one product with small matrices: the taps of the image as evaluation sees it, of which
a cut takes some in another order. What lies in the frame has no taps, hence is black.
"""

import numpy as np
from torch import Tensor

from nncsl.data import crops
from nncsl.data.crops import Resampling, Taps


def cut(
    images: Tensor | np.ndarray,
    sizes: np.ndarray,
    top: np.ndarray,
    left: np.ndarray,
    flip: np.ndarray,
    *,
    size: int,
    frame: int,
    on_cpu: bool,
) -> tuple[Resampling, ...]:
    """Prepare squares of `size` pixels, cut from plain images in a frame: uint8 [n, H, W, C].

    sizes: [n, 2] height and width of each image; top, left: integers [n] in 0..2 frame, (frame, frame) being the plain
    image itself; flip: bool [n]; on_cpu: as in `crops.prepare`.
    """
    rows, columns = plain_taps(sizes, size)
    columns = _moved(columns, left - frame).reversed(flip)
    return crops.prepare(images, _moved(rows, top - frame), columns, on_cpu=on_cpu)


def plain_taps(sizes: np.ndarray, size: int) -> tuple[Taps, Taps]:
    """Return the taps along rows and columns of plain images of `size` pixels; sizes: [n, 2] heights and widths.

    An image of that size stays as it is; of any other one the short side is resized to 256/224 of it, then the center
    is cut out.
    """
    short = np.where((sizes == size).all(axis=1), size, round(size * 256 / 224))[:, None]
    resized = short * sizes // sizes.min(axis=1, keepdims=True)
    offset = np.rint((resized - size) / 2).astype(np.int64)
    scale, start = sizes / resized, np.zeros(len(sizes), dtype=np.int64)
    rows, columns = (
        crops.triangle_taps(start, sizes[:, axis], size, scale=scale[:, axis], offset=offset[:, axis])
        for axis in (0, 1)
    )
    return rows, columns


def _moved(taps: Taps, by: np.ndarray) -> Taps:
    """Return the taps whose output i is output i + by of the given ones, or weighs nothing where there is none."""
    size = taps.first.shape[1]
    wanted = np.arange(size) + by[:, None]
    chosen = wanted.clip(0, size - 1)
    first = np.take_along_axis(taps.first, chosen, axis=1)
    weights = np.take_along_axis(taps.weights, chosen[:, :, None], axis=1)
    return Taps(first, weights * (wanted == chosen)[:, :, None])
