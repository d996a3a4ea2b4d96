"""The figures of a report about the paper: the numbers of the report in the charts of `web.charts.paper`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from web.binding import DASHES, bind
from web.figures import spec
from web.palette import COLORS, MAP_DASHES

Items = list[dict[str, Any]]


def paper_figure(figure: Mapping[str, Any]) -> dict[str, Any]:
    """One figure of a report, bound to its numbers.

    figure: {"chart", "caption", "lines": {label: {"x", "y"}}}, or in place of lines "ranges": {label: {"low", "median", "high",
    "finite", "total"}}, or for a stability map "line": {"x", "y"} and "marks": [{"map", "died", "x", "y", "text"}]. A number
    that is null or not finite has no point on its line; a mark at the edge shows its place.
    """
    chart = spec(figure["chart"])
    if "ranges" in figure:
        drawn = bind(chart, {}, items=_ranges(figure["ranges"]), colors=COLORS)
        drawn["layout"]["xaxis"]["title"] = {"text": figure["x_title"]}
        return drawn
    if "marks" in figure:
        return _stability(chart, figure["line"], figure["marks"])
    data: dict[str, dict[str, Any]] = {}
    items: Items = []
    for i, (label, line) in enumerate(figure["lines"].items()):
        y = np.array([np.nan if value is None else float(value) for value in line["y"]], np.float64)
        data[f"paper/line-{i}"] = {"step": np.asarray(line["x"], np.float64), "value": y[:, None].astype(np.float32)}
        items.append({"key": f"line-{i}", "label": label, "column": 0, **_look(label, i, items)})
    drawn = bind(chart, data, items=items, colors=COLORS)
    for trace in drawn["data"]:
        if trace["meta"]["field"] == "nonfinite" and trace.get("text"):
            trace["text"] = [trace["name"]] * len(trace["text"])
    return drawn


def _stability(
    chart: Mapping[str, Any], line: Mapping[str, Sequence[float]], marks: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The stability map. Marks of several maps at the same length are moved apart a little, or they would hide each other."""
    maps = list(dict.fromkeys(mark["map"] for mark in marks))
    data = {"paper/edge": {"step": np.asarray(line["x"], np.float64), "value": np.asarray(line["y"], np.float32)[:, None]}}
    items: Items = []
    texts: dict[str, list[str]] = {}
    for i, name in enumerate(maps):
        items.append({"key": name, "label": name, "column": 0, **_look(name, i, items)})
        shift = 1 + 0.05 * (i - (len(maps) - 1) / 2)
        for state, died in (("lives", False), ("died", True)):
            own = [mark for mark in marks if (mark["map"], bool(mark["died"])) == (name, died)]
            if own:
                x, y = (np.asarray([mark[axis] for mark in own], np.float64) for axis in ("x", "y"))
                data[f"paper/{state}-{name}"] = {"step": x * shift, "value": y[:, None].astype(np.float32)}
                texts[f"{name}, {'fatal step' if died else 'lives'}"] = [str(mark["text"]) for mark in own]
    drawn = bind(chart, data, items=items, colors=COLORS)
    drawn["data"] = [trace for trace in drawn["data"] if len(trace["x"])]
    for trace in drawn["data"]:
        if trace["name"] in texts:
            trace["text"] = texts[trace["name"]]
    lengths = sorted({mark["x"] for mark in marks})
    drawn["layout"]["xaxis"] |= {"tickvals": lengths, "ticktext": [f"{length:g}" for length in lengths]}
    return drawn


def _ranges(ranges: Mapping[str, Mapping[str, float]]) -> Items:
    return [
        {
            "reparameterization": label,
            "label": label,
            "min": one["low"],
            "q05": one["low"],
            "median": one["median"],
            "q95": one["high"],
            "max": one["high"],
            "finite": one["finite"],
            "total": one["total"],
            "color": f"map-{_map(label)}",
        }
        for label, one in ranges.items()
    ]


def _map(label: str) -> str:
    """The map that a label begins with: `best, b = 0.5` and `best: 32` are drawn in the colour of `best`."""
    return label.split(",")[0].split(":")[0].strip()


def _look(label: str, index: int, before: Items) -> dict[str, Any]:
    """Colour and dash of a line. Lines of the same map have different dashes."""
    name = f"map-{_map(label)}"
    if name not in COLORS:
        return {"color": f"line-{index % 8}", "dash": DASHES[index // 8 % 6]}
    same = sum(item["color"] == name for item in before)
    return {"color": name, "dash": MAP_DASHES.get(_map(label), "solid") if not same else DASHES[same % 6]}
