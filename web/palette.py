"""Colours that mean something, once: a map or a role has the same colour in every chart and on every page.

Light-mode values; static/colors.css holds the same names for both modes (a test compares). The maps' colours were searched
near Wong's and Tol's sets so that any two stay at least 25 apart (CIE76) under simulated protanopia, deuteranopia and tritanopia
(Machado 2009), in both modes. The dash pattern repeats the distinction for those who see no colours at all. A map that has no
colour here is drawn in `muted`.
"""

COLORS = {
    "accent": "#2f5fd0",
    "ink": "#1b2130",
    "muted": "#5b6577",
    "danger": "#c22f3d",
    "warning": "#8a5c00",
    "map-direct": "#ff005f",
    "map-relu": "#7b5000",
    "map-clip": "#2e1c0b",
    "map-exp": "#e67400",
    "map-softplus": "#934afc",
    "map-tanh": "#d76dbe",
    "map-best": "#00a780",
    "map-heavytail": "#4a48ae",
    "map-sigmoid": "#00153e",
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
