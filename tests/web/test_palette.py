"""The colours are the same on pages and in charts, readable, and distinguishable with every type of colour vision."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from stablessm_core.maps import MAPS
from stablessm_core.spec.layers import LAYERS
from web import figures
from web.palette import (
    COLORS,
    DARK_COLORS,
    LAYER_COLORS,
    LINES,
    MAP_DASHES,
    MAP_LOOKS,
    SPARE_LAYER_COLORS,
    SPARE_MAP_LOOKS,
    assigned,
    stylesheet,
)

STATIC = Path(figures.__file__).parent / "static"
# Machado, Oliveira and Fernandes (2009), severity 1: matrices that map linear RGB to the perceived linear RGB
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


PAGE = [dict(re.findall(r"--([\w-]+):\s*(#\w+)", css)) for css in (STATIC / "colors.css").read_text().split("@media")]
CHARTS = [COLORS, DARK_COLORS]
KINDS = {
    "maps": [pair for pair, _ in (*MAP_LOOKS.values(), *SPARE_MAP_LOOKS)],
    "layers": [*LAYER_COLORS.values(), *SPARE_LAYER_COLORS],
    "lines": [*LINES],
}


def test_every_map_and_layer_has_a_colour_and_no_colour_entry_is_unused() -> None:
    assert set(MAP_LOOKS) <= set(MAPS)
    assert set(LAYER_COLORS) <= set(LAYERS)
    assert {f"map-{name}" for name in MAPS} | {f"layer-{name}" for name in LAYERS} <= set(COLORS)
    assert not set(PAGE[0]) & set(COLORS), "a colour must be defined in only one table"


def test_the_page_gets_every_colour_and_dash_from_the_palette() -> None:
    light, dark = stylesheet().split("@media")
    assert dict(re.findall(r"--([\w-]+): (#\w+);", light)) == COLORS
    assert dict(re.findall(r"--([\w-]+): (#\w+);", dark)) == DARK_COLORS
    assert dict(re.findall(r"--dash-(\w+): (\w+);", light)) == MAP_DASHES
    assert re.findall(r'\[data-map="(\w+)"\] { --of: var\(--map-\1\); }', dark) == [*MAPS]
    assert re.findall(r'\[data-layer="(\w+)"\] { --own: var\(--layer-\1\); }', dark) == [*LAYERS]


def test_a_new_map_or_layer_gets_a_spare_colour_if_available() -> None:
    rows = assigned(["new", "ours", "newer", "newest"], {"ours": 0}, [1, 2])
    assert rows == {"new": 1, "ours": 0, "newer": 2}


def contrast(a: str, b: str) -> float:
    def luminance(color: str) -> float:
        parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        r, g, b = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_text_and_lines_have_enough_contrast(mode: int) -> None:
    c = PAGE[mode] | CHARTS[mode]
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
    for pairs in KINDS.values():
        for pair in pairs:
            assert contrast(pair[mode], c["surface"]) >= 2.9, pair


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_no_two_maps_and_no_two_lines_look_alike(mode: int, vision: str) -> None:
    for pairs in KINDS.values():
        assert len(pairs) >= 8
        for a, b in itertools.combinations([pair[mode] for pair in pairs], 2):
            # A difference of 0.02 is just noticeable; a thin line needs more. For all pairs, 0.055 is at least 12 by CIEDE2000.
            assert np.linalg.norm(oklab(a, vision) - oklab(b, vision)) >= 0.055, (a, b)


def oklab(color: str, vision: str) -> np.ndarray:
    parts = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.asarray(VISION[vision]) @ linear, 0, 1)
    return np.asarray(TO_OKLAB) @ np.cbrt(np.asarray(TO_CONES) @ seen)
