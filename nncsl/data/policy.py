"""What may happen to an image on its way to a view: crops, probabilities, strengths, normalization."""

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace

# How the first three look is the preset's choice. The others look the same under every preset, in its size and
# normalization, and flipped if it flips: `weak` is what methods that only see labels usually train on, `strong` what
# consistency with it is asked of, `plain` what evaluation sees.
PRESET_KINDS = ("large", "small", "support")
KINDS = (*PRESET_KINDS, "weak", "strong", "plain")

# Part of every fingerprint: raise it when the same parameters give other pixels or the same key other parameters
# (those that `ViewPolicy.of` writes down included).
RENDERER_VERSION = 2


@dataclass(frozen=True)
class Crop:
    """Random crops: how many per image, their size in pixels, the part of the image's area and the aspect they take."""

    count: int
    size: int
    area: tuple[float, float]
    aspect: tuple[float, float] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        object.__setattr__(self, "area", tuple(map(float, self.area)))
        object.__setattr__(self, "aspect", tuple(map(float, self.aspect)))
        if self.count < 0 or self.size < 1:
            raise ValueError(f"a crop needs count >= 0 and size >= 1, got count={self.count}, size={self.size}")
        if not (len(self.area) == 2 and 0 < self.area[0] <= self.area[1] <= 1):
            raise ValueError(f"crop area must be (low, high) with 0 < low <= high <= 1, got {self.area}")
        if not (len(self.aspect) == 2 and 0 < self.aspect[0] <= self.aspect[1]):
            raise ValueError(f"crop aspect must be (low, high) with 0 < low <= high, got {self.aspect}")


@dataclass(frozen=True)
class ViewPolicy:
    """What may happen to an image, in this order; `flip`, `jitter` and from `solarize` to `blur` are probabilities.

    Crop and flip; brightness, contrast, saturation (by .8 color) and hue (by .2 color) in random order; gray;
    solarize; equalize; blur; normalization by mean and std per channel. Images with one channel have no color to
    change: jitter, gray, solarize and equalize skip them.
    """

    large: Crop
    small: Crop
    flip: float = 0.5
    color: float = 0.5
    jitter: float = 0.8
    solarize: float = 0.2
    equalize: float = 0.2
    gray: float = 0.0
    blur: float = 0.0
    mean: tuple[float, ...] = field(kw_only=True)
    std: tuple[float, ...] = field(kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", tuple(map(float, self.mean)))
        object.__setattr__(self, "std", tuple(map(float, self.std)))
        for name in ("flip", "jitter", "solarize", "equalize", "gray", "blur"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is a probability and must be in [0, 1], got {getattr(self, name)}")
        if not 0 <= self.color <= 2.5:
            raise ValueError(
                f"color must be in [0, 2.5] (hue turns by .2 color, at most half a turn), got {self.color}"
            )
        if len(self.mean) != len(self.std) or len(self.mean) not in (1, 3) or min(self.std) <= 0:
            raise ValueError(f"mean and std need 1 or 3 numbers each, std > 0; got mean={self.mean}, std={self.std}")

    def crop(self, kind: str) -> Crop:
        """The crop of a kind of view; supports share the geometry of large views."""
        policy = self.of(kind)
        return policy.small if kind == "small" else policy.large

    def frame(self, kind: str) -> int | None:
        """Return how many black pixels surround the plain image that a kind is cut from; None: the image itself is cut.

        The plain image is the one that evaluation sees, in the size of large views.
        """
        if kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
        return {"weak": self.large.size // 8, "plain": 0}.get(kind)

    def of(self, kind: str) -> "ViewPolicy":
        """Return the policy in whose terms a kind is drawn: this one for the preset's own kinds.

        In that of any other kind, `large` is the crop; in that of a framed one, area is a part of image and frame.
        """
        size, frame = self.large.size, self.frame(kind)
        if frame is not None:
            area = (size / (size + 2 * frame)) ** 2  # that of the plain image, in its frame
            crop = Crop(1, size, (area, area), aspect=(1, 1))
            flip = 0.0 if kind == "plain" else self.flip
            return replace(self, large=crop, flip=flip, jitter=0.0, gray=0.0, solarize=0.0, equalize=0.0, blur=0.0)
        if kind == "strong":
            crop = Crop(1, size, (0.2, 1.0))
            return replace(self, large=crop, color=0.5, jitter=0.8, gray=0.2, solarize=0.0, equalize=0.0, blur=0.0)
        return self

    def fingerprint(self) -> str:
        """SHA-256 (hex) of all that decides pixels: two policies with the same one render the same views."""
        content = asdict(self) | {"version": RENDERER_VERSION}
        for crop in ("large", "small"):
            del content[crop]["count"]  # how many views are taken does not change any of them
        as_floats = json.loads(json.dumps(content), parse_int=float)  # 1 and 1.0 are the same policy
        return hashlib.sha256(json.dumps(as_floats, sort_keys=True).encode()).hexdigest()
