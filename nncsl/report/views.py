"""Images inside the page, as small PNG files: the views that the network learns from, and what a method has made."""

import base64
import io
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from nncsl import files
from nncsl.config import recorded
from nncsl.errors import UserError
from nncsl.report.html import tag, text

EACH, _LARGEST = 8, 128
_LARGEST_KEPT = 16 << 20  # bytes
_IMAGE = re.compile(r"data:image/png;base64,[A-Za-z0-9+/]+=*")
Opened = tuple[Any, Any]  # the source and its tasks, where the caller holds them already


def tiles(folder: Path, settings: dict[str, Any], opened: Opened | None) -> dict[str, list[str]]:
    """Kind of view -> images as data: URIs; drawn once, then kept in the run's folder. UserError without the data."""
    path = folder / "snapshots" / "views.json"
    with suppress(UserError):  # none yet, or a damaged one: they are drawn
        if _are_tiles(kept := files.read_json(path, _LARGEST_KEPT)):
            return kept
    from nncsl.data.sheets import views_of_one_image
    from nncsl.record.earlier import ContinuedSource, open_run

    config = recorded(settings)
    source, tasks = opened or open_run(folder, config)
    own = tasks[-1:] if isinstance(source, ContinuedSource) else tasks  # images of earlier tasks may be gone
    rows = views_of_one_image(config, source, own)
    drawn = {kind: [data_uri(pixels) for pixels in images[:EACH]] for kind, images in rows.items()}
    with suppress(UserError, OSError):  # in somebody else's folder they are drawn anew the next time
        files.write_text(path, json.dumps(drawn))
    return drawn


def _are_tiles(kept: Any) -> bool:
    """Whether this is what :func:`tiles` keeps: anything else could fetch or execute something in a browser."""
    if not isinstance(kept, dict) or not all(isinstance(row, list) and len(row) <= EACH for row in kept.values()):
        return False
    return all(isinstance(uri, str) and _IMAGE.fullmatch(uri) for row in kept.values() for uri in row)


def data_uri(pixels: np.ndarray) -> str:
    """Return an image, uint8 [H, W, C], as a small PNG file inside the page."""
    from PIL import Image

    image = Image.fromarray(pixels.squeeze())
    image.thumbnail((_LARGEST, _LARGEST))
    png = io.BytesIO()
    image.save(png, "png", optimize=True)
    return "data:image/png;base64," + base64.b64encode(png.getvalue()).decode()


def sheet(rows: dict[str, list[str]]) -> str:
    """Return named rows of images, which are data: URIs."""
    drawn = []
    for name, images in rows.items():
        inside = [uri for uri in images if _IMAGE.fullmatch(uri)]  # nothing that a browser would fetch or execute
        tags = [tag("img", src=uri, alt=f"{name} {i + 1}").removesuffix("</img>") for i, uri in enumerate(inside)]
        drawn.append(tag("dt", text(name)) + tag("dd", *tags))
    return tag("dl", *drawn, class_="views")
