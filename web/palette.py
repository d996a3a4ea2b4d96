"""Colours that mean something, once: a map or a role has the same colour in every chart and on every page.

Light-mode values; static/colors.css holds the same names for both modes (a test compares). After Wong's and Tol's
colour-blind-safe sets; the dash pattern repeats the distinction for those who see no colours at all. A map that has no colour
here is drawn in `muted`.
"""

COLORS = {
    "accent": "#2f5fd0",
    "ink": "#1b2130",
    "muted": "#5b6577",
    "danger": "#c22f3d",
    "warning": "#8a5c00",
    "map-direct": "#d1495b",
    "map-relu": "#997a00",
    "map-clip": "#7a6a58",
    "map-exp": "#e07a00",
    "map-softplus": "#8a4fbf",
    "map-tanh": "#c2529b",
    "map-best": "#0a7f6f",
    "map-heavytail": "#2a78c8",
    "map-sigmoid": "#4a5568",
    "line-0": "#0072b2",
    "line-1": "#d55e00",
    "line-2": "#009e73",
    "line-3": "#b0578d",
    "line-4": "#a07a00",
    "line-5": "#3f9bd1",
    "line-6": "#6b4fa0",
    "line-7": "#5b6577",
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
