"""Own images have no preset: views, stem, batch and rates by the images' short side."""

from typing import Any

from nncsl.config import preset_values

_THUMBNAILS, _SMALL = 40, 100  # pixels of the short side, up to which images count as such
_SCALED = ("views", "network", "unlabeled_batch", "labeled_per_class", "lr_start", "lr_peak", "lr_end")


def settings_for(short_side: int) -> dict[str, Any]:
    """Return what differs from the cifar10 preset for images of this short side, in pixels.

    Up to 40: nothing. Up to 100: views of 64 and 36 pixels, and the stem that halves an image twice, which makes a step
    as costly as CIFAR's. Larger: all that depends on the size as in the imagenet100 preset, views of 224 and 96 pixels.
    """
    if short_side <= _THUMBNAILS:
        return {}
    if short_side <= _SMALL:
        return {"views": {"large": {"size": 64}, "small": {"size": 36}}, "network": {"stem": "imagenet"}}
    return {key: value for key, value in preset_values("imagenet100").items() if key in _SCALED}
