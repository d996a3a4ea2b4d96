"""The colours: the same for pages and charts, readable, and told apart by everybody."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from stablessm_core.layers.registry import LAYERS
from web import figures
from web.palette import COLORS, MAP_DASHES

STATIC = Path(figures.__file__).parent / "static"
# Machado, Oliveira and Fernandes (2009), severity 1: what linear RGB looks like
VISION = {
    "all colours": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
TO_CONES = [
    [0.4122214708, 0.5363325363, 0.0514459929],
    [0.2119034982, 0.6806995451, 0.1073969566],
    [0.0883024619, 0.2817188376, 0.6299787005],
]
TO_OKLAB = [
    [0.2104542553, 0.7936177850, -0.0040720468],
    [1.9779984951, -2.4285922050, 0.4505937099],
    [0.0259040371, 0.7827717662, -0.8086757660],
]


def test_page_and_python_agree_on_every_colour() -> None:
    css = (STATIC / "colors.css").read_text()
    light, dark = css.split("@media")
    named = dict(re.findall(r"--([\w-]+):\s*(#\w+)", light))
    assert {name: named[name] for name in COLORS} == COLORS
    assert set(COLORS) <= set(re.findall(r"--([\w-]+):", dark))
    assert {f"map-{name}" for name in MAP_DASHES} <= set(COLORS)
    assert {f"layer-{name}" for name in LAYERS} <= set(COLORS)
    shown = set(re.findall(r"var\(--layer-(\w+)\)", (STATIC / "base.css").read_text()))
    assert {f"layer-{name}" for name in shown} == {name for name in COLORS if name.startswith("layer-")}


def contrast(a: str, b: str) -> float:
    def luminance(color: str) -> float:
        parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        r, g, b = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_text_and_lines_can_be_read(mode: int) -> None:
    css = (STATIC / "colors.css").read_text().split("@media")[mode]
    c = dict(re.findall(r"--([\w-]+):\s*(#\w+)", css))
    for text in ("ink", "muted", "accent", "danger", "warning", "ok"):
        for surface in ("surface", "background", "raised"):
            assert contrast(c[text], c[surface]) >= 4.5, (text, surface)
    for text, surface in (
        ("danger", "danger-soft"),
        ("ok", "ok-soft"),
        ("accent", "accent-soft"),
        ("warning", "warning-soft"),
        ("on-accent", "accent"),
    ):
        assert contrast(c[text], c[surface]) >= 4.5, (text, surface)
    for line in (name for name in c if name.startswith(("map-", "line-", "layer-"))):
        assert contrast(c[line], c["surface"]) >= 2.9, line


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_no_two_maps_and_no_two_lines_look_alike(mode: int, vision: str) -> None:
    css = (STATIC / "colors.css").read_text().split("@media")[mode]
    for group in ("map-", "line-", "layer-"):
        seen = {name: oklab(color, vision) for name, color in re.findall(rf"--({group}\w+): (#\w+)", css)}
        assert len(seen) >= 8
        for a, b in itertools.combinations(seen, 2):
            # just noticeable is about 0.02; a thin line needs more. 0.055 is 12 or more by CIEDE2000 for each of these pairs.
            assert np.linalg.norm(seen[a] - seen[b]) >= 0.055, (a, b)


def oklab(color: str, vision: str) -> np.ndarray:
    parts = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.asarray(VISION[vision]) @ linear, 0, 1)
    return np.asarray(TO_OKLAB) @ np.cbrt(np.asarray(TO_CONES) @ seen)
