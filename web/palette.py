"""Colours that mean something, once: a map or a role has the same colour in every chart and on every page.

Light-mode values; static/colors.css holds the same names for both modes (a test compares). The colours of the maps, those of the
lines, and those of the layers were searched for so that any two of a kind stay apart for everybody, under simulated protanopia,
deuteranopia and tritanopia (Machado 2009) too, in both modes; tests/web/test_palette.py holds it. Dashes repeat the distinction
for those who see no colours at all. Where several layers are compared, the colour is the layer's and the dash the map's. A map or
a layer that has no colour here is drawn in `muted`.
"""

COLORS = {
    "accent": "#2f5fd0",
    "ink": "#1b2130",
    "muted": "#5b6577",
    "danger": "#c22f3d",
    "warning": "#8a5c00",
    "map-direct": "#d71425",
    "map-relu": "#98745d",
    "map-clip": "#2e1c08",
    "map-exp": "#e5740e",
    "map-softplus": "#8544db",
    "map-tanh": "#d370cb",
    "map-best": "#20a486",
    "map-heavytail": "#2f4483",
    "map-sigmoid": "#111847",
    "layer-stable_ssm": "#3e6353",
    "layer-s4": "#04069c",
    "layer-s4d": "#596cfd",
    "layer-dss": "#51768c",
    "layer-s5": "#8e84ee",
    "layer-lru": "#02a4a7",
    "layer-mamba": "#f75300",
    "layer-mamba2": "#720539",
    "layer-rg_lru": "#a98c6a",
    "layer-l2ru": "#733acd",
    "layer-retnet": "#78785d",
    "layer-gla": "#1c3603",
    "layer-rwkv4": "#9820a2",
    "layer-rwkv6": "#ae55c0",
    "layer-hyena": "#5a406e",
    "layer-min_gru": "#9e3404",
    "layer-hgrn": "#c4460e",
    "layer-gated_deltanet": "#580a62",
    "line-0": "#1963b7",
    "line-1": "#f2670e",
    "line-2": "#15946d",
    "line-3": "#b878a9",
    "line-4": "#745e1b",
    "line-5": "#4185ff",
    "line-6": "#522072",
    "line-7": "#525667",
}
MAP_DASHES = {
    "direct": "dot",
    "relu": "dash",
    "clip": "dashdot",
    "exp": "longdash",
    "softplus": "longdashdot",
    "tanh": "dash",
    "best": "solid",
    "heavytail": "dashdot",
    "sigmoid": "dot",
}
