"""Views are data: a view is a pure function of (seed, task, image id, kind, slot).

`draw` turns that key into parameters with a counter-based generator, on the host; `render` turns parameters into
pixels in batches, on the device. Neither looks at a batch, an order, a worker or a global generator, so the teacher's
pixels can be rendered again by the student instead of being stored.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import permutations

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from nncsl.data import colors, staged
from nncsl.data.policy import KINDS, Crop, ViewPolicy
from nncsl.data.rng import stream_key, uniforms
from nncsl.data.staged import Cut, Sheet, Uncut
from nncsl.steps.transfer import ship

__all__ = ["KINDS", "Crop", "ViewParameters", "ViewPolicy", "as_pixels", "draw", "make_views", "plain", "render"]

_CROP_TRIES = 10
_BLUR_SIGMAS = (0.1, 2.0)
_ORDERS = np.array(list(permutations(range(len(colors.JITTERS)))))
# Pixels rendered at a time: enough to hide the cost of a call, few enough for a CPU's caches or a GPU's memory.
_CHUNK_PIXELS_CPU = 512 * 32 * 32
_CHUNK_PIXELS = 64 * 224 * 224

PixelArray = Tensor | np.ndarray


@dataclass(frozen=True)
class ViewParameters:
    """All random choices of n views, as arrays [n] (order: [n, 4], indices into `colors.JITTERS`).

    The box (top, left, height, width) lies in the image; that of weak and plain views in the plain image's frame.
    """

    top: np.ndarray
    left: np.ndarray
    height: np.ndarray
    width: np.ndarray
    flip: np.ndarray
    jitter: np.ndarray
    order: np.ndarray
    brightness: np.ndarray
    contrast: np.ndarray
    saturation: np.ndarray
    hue: np.ndarray
    gray: np.ndarray
    blur: np.ndarray  # sigma in pixels, 0: not blurred
    solarize: np.ndarray  # threshold, 256: no level is inverted
    equalize: np.ndarray

    def __len__(self) -> int:
        return len(self.top)

    def __getitem__(self, rows: slice | np.ndarray) -> "ViewParameters":
        return ViewParameters(*(getattr(self, entry.name)[rows] for entry in fields(self)))


def draw(
    policy: ViewPolicy, kind: str, *, seed: int, task: int, ids: np.ndarray, slots: np.ndarray, sizes: ArrayLike
) -> ViewParameters:
    """The parameters of views: ids, slots integers [n]; sizes (height, width) per image [n, 2] or one pair for all."""
    policy = policy.of(kind)
    crop = policy.crop(kind)
    ids, slots = np.asarray(ids), np.asarray(slots)
    if ids.ndim != 1 or slots.shape != ids.shape:
        raise ValueError(f"ids and slots must have the same shape [n], got {ids.shape} and {slots.shape}")
    sizes = _cut_from(policy, kind, np.broadcast_to(np.asarray(sizes, dtype=np.int64), (len(ids), 2)))
    u = iter(uniforms(stream_key(seed, "view", task, kind), ids, slots, draws=15 + 2 * _CROP_TRIES).T.copy())
    chosen = {name: next(u) < getattr(policy, name) for name in ("flip", "jitter", "gray", "equalize")}
    order = _ORDERS[(next(u) * len(_ORDERS)).astype(np.int64)]
    strength = 0.8 * policy.color
    factors = {name: _between(next(u), max(0.0, 1 - strength), 1 + strength) for name in colors.JITTERS[:3]}
    hue = _between(next(u), -0.2 * policy.color, 0.2 * policy.color)
    blur = np.where(next(u) < policy.blur, _between(next(u), *_BLUR_SIGMAS), 0.0)
    solarize = np.where(next(u) < policy.solarize, next(u) * 256, 256.0)
    place = next(u), next(u)
    shape, centered = _crop_shapes(crop, sizes, [(next(u), next(u)) for _ in range(_CROP_TRIES)])
    free = sizes - shape
    corner = np.where(centered, free // 2, (np.stack(place, axis=1) * (free + 1)).astype(np.int64))
    return ViewParameters(
        top=corner[:, 0],
        left=corner[:, 1],
        height=shape[:, 0],
        width=shape[:, 1],
        order=order,
        hue=hue,
        blur=blur,
        solarize=solarize,
        **chosen,
        **factors,
    )


def prepare(
    images: PixelArray,
    parameters: ViewParameters,
    policy: ViewPolicy,
    kind: str,
    *,
    sizes: np.ndarray | None = None,
    device: torch.device | str | None = None,
) -> Iterator[Cut | Uncut]:
    """Give chunks of views of uint8 images [n, H, W, C], as arrays for `staged.develop`, which is to run on `device`.

    sizes: [n, 2] height and width of each image when they are padded at the bottom and right to a common shape.
    """
    sizes = _check(images, sizes, policy)
    device = _device(images, device)
    if len(parameters) != len(images):
        raise ValueError(f"{len(images)} images need as many rows of parameters, got {len(parameters)}")
    bottom, right = _cut_from(policy, kind, sizes).T
    outside = (parameters.top + parameters.height > bottom) | (parameters.left + parameters.width > right)
    if outside.any():
        raise ValueError(f"crop outside of image {outside.nonzero()[0][0]}: were the parameters drawn for other sizes?")
    chunk = staged.cut if device.type == "cpu" else staged.uncut
    for place in _chunks(images, policy.crop(kind).size, device):
        yield chunk(images[place], sizes[place], parameters[place], policy, kind, place)


def render(
    images: PixelArray,
    parameters: ViewParameters,
    policy: ViewPolicy,
    kind: str,
    *,
    sizes: np.ndarray | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Pixels of views: uint8 images [n, H, W, C] -> normalized float32 [n, C, size, size] on `device`.

    Arguments as in `prepare`; a chunk is developed before the next one is prepared.
    """
    device = _device(images, device)
    output = staged.empty(len(images), images.shape[3], policy, kind, device)
    for chunk in prepare(images, parameters, policy, kind, sizes=sizes, device=device):
        staged.develop(ship(chunk, device), policy, output)
    return output


def make_views(
    images: PixelArray,
    ids: np.ndarray,
    slots: np.ndarray,
    *,
    policy: ViewPolicy,
    kind: str,
    seed: int,
    task: int,
    sizes: np.ndarray | None = None,
    device: torch.device | str = "cpu",
) -> Tensor:
    """One view per row: images uint8 [n, H, W, C], ids and slots [n] -> normalized float32 [n, C, size, size]."""
    shapes = _check(images, sizes, policy)
    parameters = draw(policy, kind, seed=seed, task=task, ids=ids, slots=slots, sizes=shapes)
    return render(images, parameters, policy, kind, sizes=shapes, device=device)


def stage_views(
    images: np.ndarray,
    ids: np.ndarray,
    slots: np.ndarray,
    *,
    policy: ViewPolicy,
    kind: str,
    seed: int,
    task: int,
    sizes: np.ndarray | None = None,
    device: torch.device | str = "cpu",
) -> Sheet:
    """Prepare what `make_views` would render, on the host: once its arrays are tensors, `staged.render` makes views."""
    shapes = _check(images, sizes, policy)
    parameters = draw(policy, kind, seed=seed, task=task, ids=ids, slots=slots, sizes=shapes)
    chunks = prepare(images, parameters, policy, kind, sizes=shapes, device=device)
    return Sheet(kind, (len(images), images.shape[3]), tuple(chunks))


def plain(
    images: PixelArray, policy: ViewPolicy, *, sizes: np.ndarray | None = None, device: torch.device | str = "cpu"
) -> Tensor:
    """Images as evaluation sees them: uint8 [n, H, W, C] -> normalized float32 [n, C, size, size] as large views.

    An image of that size stays as it is; of any other one the short side is resized to 256/224 of it, then the center
    is cut out.
    """
    any_key = np.zeros(len(images), dtype=np.int64)
    return make_views(images, any_key, any_key, policy=policy, kind="plain", seed=0, task=0, sizes=sizes, device=device)


def as_pixels(views: Tensor, policy: ViewPolicy) -> np.ndarray:
    """Return normalized views [n, C, H, W] as images that people can look at: uint8 [n, H, W, C]."""
    unnormalized = views.permute(0, 2, 3, 1).cpu().numpy() * np.array(policy.std) + np.array(policy.mean)
    return np.rint(unnormalized.clip(0, 1) * 255).astype(np.uint8)


def _between(u: np.ndarray, low: float, high: float) -> np.ndarray:
    return low + u * (high - low)


def _cut_from(policy: ViewPolicy, kind: str, sizes: np.ndarray) -> np.ndarray:
    """Return height and width [n, 2] of what a kind is cut from: images of these sizes, or plain images in a frame."""
    frame = policy.frame(kind)
    return sizes if frame is None else np.full_like(sizes, policy.large.size + 2 * frame)


def _crop_shapes(
    crop: Crop, sizes: np.ndarray, tries: list[tuple[np.ndarray, np.ndarray]]
) -> tuple[np.ndarray, np.ndarray]:
    """Height and width of each crop [n, 2], and whether [n, 1] it has to be centered because no try fitted the image.

    Each try takes an area and a log-uniform aspect; the first whose shape fits is kept. Without any, the largest
    centered crop with an allowed aspect is taken.
    """
    n = len(sizes)
    narrowest, widest = crop.aspect
    rows, columns = sizes[:, 0], sizes[:, 1]
    aspect = columns / np.maximum(rows, 1)
    shape = np.stack(
        [
            np.where(aspect < narrowest, np.rint(columns / narrowest), rows),
            np.where(aspect > widest, np.rint(rows * widest), columns),
        ],
        axis=1,
    ).astype(np.int64)
    pending = np.arange(n)
    for u_area, u_aspect in tries:
        area = (rows * columns)[pending] * _between(u_area[pending], *crop.area)
        aspect = np.exp(_between(u_aspect[pending], np.log(narrowest), np.log(widest)))
        candidate = np.rint(np.sqrt(np.stack([area / aspect, area * aspect], axis=1))).astype(np.int64)
        fits = ((candidate > 0) & (candidate <= sizes[pending])).all(axis=1)
        shape[pending[fits]] = candidate[fits]
        pending = pending[~fits]
        if not len(pending):
            break
    centered = np.zeros((n, 1), dtype=bool)
    centered[pending] = True
    return shape, centered


def _chunks(images: PixelArray, size: int, device: torch.device) -> Iterator[slice]:
    n, height, width, _ = images.shape
    step = max(1, (_CHUNK_PIXELS_CPU if device.type == "cpu" else _CHUNK_PIXELS) // max(size**2, height * width))
    return (slice(start, min(start + step, n)) for start in range(0, n, step))


def _device(images: PixelArray, device: torch.device | str | None) -> torch.device:
    if device is not None:
        return torch.device(device)
    return images.device if isinstance(images, Tensor) else torch.device("cpu")


def _check(images: PixelArray, sizes: np.ndarray | None, policy: ViewPolicy) -> np.ndarray:
    """Refuse what cannot be rendered; returns height and width of each image, int64 [n, 2]."""
    if len(images.shape) != 4 or images.dtype not in (torch.uint8, np.uint8):
        raise ValueError(f"images must be uint8 [n, H, W, C], got {images.dtype} {tuple(images.shape)}")
    n, height, width, channels = images.shape
    if channels != len(policy.mean):
        raise ValueError(f"the policy normalizes {len(policy.mean)} channels, the images have {channels}")
    if sizes is None:
        return np.broadcast_to(np.array([height, width], dtype=np.int64), (n, 2))
    sizes = np.asarray(sizes, dtype=np.int64)
    if sizes.shape != (n, 2) or (n and (sizes.min() < 1 or (sizes.max(axis=0) > (height, width)).any())):
        raise ValueError(f"sizes must be [{n}, 2] with heights in 1..{height} and widths in 1..{width}, got {sizes}")
    return sizes
