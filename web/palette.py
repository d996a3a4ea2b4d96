"""Colours and dashes with a meaning: a map, a layer or a role looks the same in every chart and on every page.

Only this module defines colours and dashes. `stylesheet` writes palette.css, and the scripts read the CSS variables of this
file. A map or a layer without a row in this module gets the next spare row, in the order of MAPS and LAYERS. When no row is
left, the map or layer is drawn in `muted`.

The colours of the maps, of the layers and of the lines were found by a search. Within each of these three groups, any two
colours, including spare colours, can be distinguished in light and in dark mode, even under simulated protanopia, deuteranopia
and tritanopia (Machado 2009); tests/web/test_palette.py checks this. For people who cannot see colours, dashes make the same
distinction as colours. A chart that compares several layers shows the layer by colour and the map by dash.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import TypeVar

from stablessm_core.maps import MAPS
from stablessm_core.spec.layers import LAYERS

Pair = tuple[str, str]  # the colour in light mode and in dark mode
Row = TypeVar("Row")

ROLES: dict[str, Pair] = {
    "accent": ("#2f5fd0", "#86acff"),
    "ink": ("#1b2130", "#e6eaf1"),
    "muted": ("#5b6577", "#9aa6b8"),
    "danger": ("#c22f3d", "#ff7b86"),
    "warning": ("#8a5c00", "#e8b339"),
}
LINES: tuple[Pair, ...] = (
    ("#1963b7", "#319afb"),
    ("#f2670e", "#de9f7a"),
    ("#15946d", "#36af0c"),
    ("#b878a9", "#b3768b"),
    ("#745e1b", "#edd35e"),
    ("#4185ff", "#1dd0f9"),
    ("#522072", "#7878ac"),
    ("#525667", "#cbd0d5"),
)
MAP_LOOKS: dict[str, tuple[Pair, str]] = {  # map -> (its colours, its dash)
    "direct": (("#d71425", "#f92b44"), "dot"),
    "relu": (("#98745d", "#9a7e70"), "dash"),
    "clip": (("#2e1c08", "#f6ede0"), "dashdot"),
    "exp": (("#e5740e", "#f2a253"), "longdash"),
    "softplus": (("#8544db", "#aa76ff"), "longdashdot"),
    "tanh": (("#d370cb", "#f7a1ff"), "dash"),
    "best": (("#20a486", "#50cea1"), "solid"),
    "heavytail": (("#2f4483", "#6382ab"), "dashdot"),
    "sigmoid": (("#111847", "#9ca9bc"), "dot"),
}
SPARE_MAP_LOOKS: tuple[tuple[Pair, str], ...] = (
    (("#6900be", "#aa05d7"), "longdash"),
    (("#c337a5", "#eb3cd2"), "longdashdot"),
    (("#692d3c", "#9bf500"), "dot"),
)
LAYER_COLORS: dict[str, Pair] = {
    "stable_ssm": ("#3e6353", "#15a270"),
    "s4": ("#04069c", "#88a2f8"),
    "s4d": ("#596cfd", "#947ad7"),
    "dss": ("#51768c", "#28d2fe"),
    "s5": ("#8e84ee", "#7765f8"),
    "lru": ("#02a4a7", "#aaf3f8"),
    "mamba": ("#f75300", "#ca6711"),
    "mamba2": ("#720539", "#bd323b"),
    "rg_lru": ("#a98c6a", "#ffcdb6"),
    "l2ru": ("#733acd", "#7350ca"),
    "retnet": ("#78785d", "#95d605"),
    "gla": ("#1c3603", "#cef304"),
    "rwkv4": ("#9820a2", "#c2b2c7"),
    "rwkv6": ("#ae55c0", "#b88db7"),
    "hyena": ("#5a406e", "#934b95"),
    "min_gru": ("#9e3404", "#ecaa88"),
    "hgrn": ("#c4460e", "#ea8711"),
    "gated_deltanet": ("#580a62", "#a36b9e"),
}
SPARE_LAYER_COLORS: tuple[Pair, ...] = (("#0000fa", "#7d87ff"), ("#ff4bb4", "#ff4b64"), ("#733732", "#af506e"))


def assigned(names: Iterable[str], own: Mapping[str, Row], spare: Iterable[Row]) -> dict[str, Row]:
    """The row of each name: the row in `own`, otherwise the next spare row. Names for which no row is left are omitted."""
    rest = iter(spare)
    rows = ((name, own[name] if name in own else next(rest, None)) for name in names)
    return {name: row for name, row in rows if row is not None}


_LOOKS = assigned(MAPS, MAP_LOOKS, SPARE_MAP_LOOKS)
_COLORS = ROLES | dict(
    chain(
        ((f"map-{name}", pair) for name, (pair, _) in _LOOKS.items()),
        ((f"layer-{name}", pair) for name, pair in assigned(LAYERS, LAYER_COLORS, SPARE_LAYER_COLORS).items()),
        ((f"line-{i}", pair) for i, pair in enumerate(LINES)),
    )
)
COLORS = {name: light for name, (light, _) in _COLORS.items()}
DARK_COLORS = {name: dark for name, (_, dark) in _COLORS.items()}
MAP_DASHES = {name: dash for name, (_, dash) in _LOOKS.items()}


def stylesheet() -> str:
    """The text of palette.css: colours and dashes as variables, and the colour of each element that names a map or a layer."""
    dashes = {f"dash-{name}": dash for name, dash in MAP_DASHES.items()}
    rules = [
        f":root {{{_variables(COLORS | dashes)}}}",
        f"@media (prefers-color-scheme: dark) {{ :root {{{_variables(DARK_COLORS)}}} }}",
        *(f'[data-map="{name}"] {{ --of: var(--map-{name}); }}' for name in MAPS if f"map-{name}" in COLORS),
        *(f'[data-layer="{name}"] {{ --own: var(--layer-{name}); }}' for name in LAYERS if f"layer-{name}" in COLORS),
    ]
    return "\n".join(rules) + "\n"


def _variables(values: Mapping[str, str]) -> str:
    return " ".join(f"--{name}: {value};" for name, value in values.items())
