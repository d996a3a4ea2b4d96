"""How charts of several runs draw each run and each group; `static/lib/looks.js` does the same in the browser (a test checks it).

If the layers differ, the colour shows the layer and the dash the map. Otherwise the colour shows the map, and the dash
distinguishes runs of one map.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from web.binding import DASHES
from web.palette import COLORS, MAP_DASHES

Look = dict[str, str]


def run_looks(runs: Sequence[Mapping[str, str]]) -> list[Look]:
    """{color, dash} of each {layer, map}; color is a name of the palette.

    Runs with mixed layers, and layers that have no colour in the palette, get one of the palette's colours for lines.
    """
    layers = list(dict.fromkeys(run["layer"] for run in runs))
    if len(layers) > 1:
        others = [layer for layer in layers if f"layer-{layer}" not in COLORS]
        colors = {layer: f"line-{others.index(layer) % 8}" if layer in others else f"layer-{layer}" for layer in layers}
        return [{"color": colors[run["layer"]], "dash": MAP_DASHES.get(run["map"], "solid")} for run in runs]
    seen: dict[str, int] = {}
    looks = []
    for run in runs:
        place = seen[run["map"]] = seen.get(run["map"], -1) + 1
        looks.append({"color": f"map-{run['map']}", "dash": DASHES[place % len(DASHES)]})
    return looks


def group_looks(groups: Mapping[str, Sequence[Mapping[str, str]]]) -> dict[str, Look]:
    """{color, dash} of each group, by its name, from its runs' {layer, map, color, dash}.

    If the layers differ between groups but not within a group, each group looks like its runs, unless two groups would then
    look the same. A group with several maps has a solid line. Otherwise, a group that is named after its map has the map's
    colour. All other groups get the palette's colours for lines; from the ninth group on, the lines are also dashed.
    """
    several = len({run["layer"] for runs in groups.values() for run in runs}) > 1
    common = {name: _common(runs) for name, runs in groups.items()} if several else {}
    if common and all(common.values()) and len({tuple(sorted(look.items())) for look in common.values() if look}) == len(groups):
        return {name: look for name, look in common.items() if look}
    looks = {}
    for i, (name, runs) in enumerate(groups.items()):
        of_map = not several and runs[0]["map"] == name
        looks[name] = {
            "color": runs[0]["color"] if of_map else f"line-{i % 8}",
            "dash": "solid" if of_map else DASHES[i // 8 % 6],
        }
    return looks


def _common(runs: Sequence[Mapping[str, str]]) -> Look | None:
    colors, dashes = {run["color"] for run in runs}, {run["dash"] for run in runs}
    return {"color": colors.pop(), "dash": dashes.pop() if len(dashes) == 1 else "solid"} if len(colors) == 1 else None
