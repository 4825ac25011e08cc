"""The palette, seen by people with each kind of color blindness, on both backgrounds."""

import itertools
import re
from importlib import resources

import numpy as np
import pytest

# Machado, Oliveira and Fernandes 2009, full severity, on linear RGB.
VISION = {
    "usual": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def palettes():
    """Light and dark: name -> linear RGB."""
    text = (resources.files("nncsl.report") / "style.css").read_text()
    light, dark = (text[start:] for start in (text.index(":root"), text.index("prefers-color-scheme: dark")))
    return {"light": variables(light.split("}")[0]), "dark": variables(dark.split("}")[0])}


def variables(block):
    found = re.findall(r"--(\w+): #([0-9a-f]{6})", block)
    channels = {name: np.array([int(code[i : i + 2], 16) / 255 for i in (0, 2, 4)]) for name, code in found}
    return {n: np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4) for n, c in channels.items()}


def lab(linear):
    xyz = TO_XYZ @ np.clip(linear, 0, 1) / (TO_XYZ @ np.ones(3))
    f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_any_two_of_the_first_colors_can_be_told_apart(scheme, vision):
    """The first four at a glance, all eight clearly: two units are just noticed, ten are plain to see."""
    colors = [lab(np.array(VISION[vision]) @ palettes()[scheme][f"c{i}"]) for i in range(1, 9)]
    far = {(i, j): np.linalg.norm(colors[i] - colors[j]) for i, j in itertools.combinations(range(8), 2)}
    assert min(far.values()) > 15, (scheme, vision, min(far, key=far.get))
    assert min(d for (_, j), d in far.items() if j < 4) > 30


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_marks_and_text_stand_out_from_the_card(scheme):
    """Three to one for lines and marks, four and a half for text, as WCAG asks."""
    colors = {name: TO_XYZ[1] @ value for name, value in palettes()[scheme].items()}

    def contrast(a, b):
        bright, dark = max(colors[a], colors[b]), min(colors[a], colors[b])
        return (bright + 0.05) / (dark + 0.05)

    assert min(contrast(f"c{i}", "card") for i in range(1, 9)) >= 3
    assert contrast("ink", "card") >= 12 and contrast("soft", "card") >= 4.5 and contrast("soft", "page") >= 4.5
