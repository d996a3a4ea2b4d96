"""Draws the traces of a Plotly figure on the axes of a picture: lines, marks, areas, bars and heat maps."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import groupby
from typing import Any

import numpy as np
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.transforms import blended_transform_factory

from stablessm_core.telemetry.typed_arrays import decode
from web.picture.axes import set_scales
from web.picture.heat import draw_heat
from web.picture.legend import Entry
from web.picture.sizes import Size
from web.picture.text import plain

POINT = 0.75  # points per pixel
DASHES = {"dot": (1, 1), "dash": (3, 3), "longdash": (5, 5), "dashdot": (3, 1, 1, 1), "longdashdot": (5, 2, 1, 2)}  # as Plotly
SYMBOLS = {
    "circle": "o", "x": "X", "diamond": "D", "triangle-up": "^", "triangle-down": "v", "triangle-left": "<", "line-ns": "|",
}  # fmt: skip
DEFAULT = "#5b6577"


def draw_traces(figure: Figure, axes: Any, drawn: Mapping[str, Any], size: Size) -> list[Entry]:
    """Draw every visible trace, and return the entries of the legend.

    A file has no hover text. Marks of values that the axis cannot show are therefore in the legend even if the page's chart
    has none.
    """
    set_scales(axes, drawn["layout"])
    axes.margins(x=0.01 if not any("heatmap" in t["type"] for t in drawn["data"]) else 0, y=0.05)
    legend = drawn["layout"].get("showlegend", True)
    entries: list[Entry] = []
    before: tuple[Any, Any] | None = None  # the points of the trace before, down to which an area reaches
    for trace in drawn["data"]:
        x, y = points(trace.get("x")), points(trace.get("y"))
        handle = None if trace.get("visible", True) is not True else _draw(figure, axes, trace, x, y, before, size)
        before = (x, y)
        name, mark = plain(trace.get("name") or ""), trace.get("yaxis") == "y2" or trace.get("xaxis") == "x2"
        if mark and trace.get("showlegend") is False:
            name = name.rpartition(": ")[2]  # one entry for the marks of all runs
        if handle is not None and name and (mark or (legend and trace.get("showlegend", True))):
            if (mark or not _has_line(handle)) and name in dict(entries):
                continue  # such as the mark at the end of a line
            entries.append((name, handle))
    return entries


def _has_line(handle: Any) -> bool:
    return isinstance(handle, Patch) or handle.get_linewidth() > 0


def points(values: Any) -> Any:
    """The numbers of a trace as an array, NaN for gaps; words as a list."""
    if isinstance(values, Mapping):
        return decode(values)
    given = list(values if values is not None else [])
    if any(isinstance(value, str) for value in given):
        return given
    return np.array([np.nan if value is None else float(value) for value in given])


def _draw(figure: Figure, axes: Any, trace: Mapping[str, Any], x: Any, y: Any, before: Any, size: Size) -> Any:
    """Draw one trace. Returns its sample for the legend, or None if there is nothing to see."""
    if trace["type"] == "heatmap":
        return draw_heat(figure, axes, trace, x, y, size)
    if trace["type"] == "bar":
        return _bars(axes, trace, x, y)
    if not len(x) or not len(y):
        return None
    across = axes.transAxes if trace.get("xaxis") == "x2" else axes.transData
    up = axes.transAxes if trace.get("yaxis") == "y2" else axes.transData
    shared = up is axes.transData and across is axes.transData
    how: dict[str, Any] = {} if shared else {"transform": blended_transform_factory(across, up)}
    how |= {"clip_on": trace.get("cliponaxis", True), "alpha": trace.get("opacity")}
    if trace.get("fill"):
        return _area(axes, trace, x, y, before)
    line, mode = trace.get("line") or {}, trace.get("mode", "lines")
    width = line.get("width", 2) * POINT * size.line
    color = _color(line.get("color"))
    sample: dict[str, Any] = {"color": color, "linewidth": 0}
    if "lines" in mode and width:
        dash = DASHES.get(line.get("dash") or "solid")
        unit = max(line.get("width", 2), 3) * POINT * size.line / width
        style: Any = (0, tuple(part * unit for part in dash)) if dash else "-"
        axes.plot(x, y, color=color, linewidth=width, linestyle=style, solid_joinstyle="round", **how)
        sample |= {"linewidth": width, "linestyle": style}
    if "error_y" in trace:
        _errors(axes, trace["error_y"], x, y, color)
    if "markers" in mode:
        sample |= _marks(axes, {"color": line.get("color"), **(trace.get("marker") or {})}, x, y, how, size)
    return Line2D([], [], **sample) if sample["linewidth"] or "marker" in sample else None


def _marks(axes: Any, marker: Mapping[str, Any], x: Any, y: Any, how: Mapping[str, Any], size: Size) -> dict[str, Any]:
    """Draw marks of one or several symbols and sizes, and return the look of the first."""
    several = [
        np.broadcast_to(np.asarray(marker.get(part, usual)), len(x)) for part, usual in (("symbol", "circle"), ("size", 6))
    ]
    rows = sorted((str(symbol), float(width), i) for i, (symbol, width) in enumerate(zip(*several, strict=True)) if width)
    first: dict[str, Any] = {}
    for (symbol, width), group in groupby(rows, key=lambda row: row[:2]):
        at, open_ = [i for *_, i in group], symbol.endswith("-open")
        color = _color(marker.get("color"))
        edge = marker.get("line", {}).get("width", 0) or (1.2 if open_ else 0)
        look = {
            "marker": SYMBOLS.get(symbol.removesuffix("-open"), "o"),
            "markersize": width * POINT * (1 if size.line == 1 else 0.85),
            "markerfacecolor": "none" if open_ else color,
            "markeredgecolor": color,
            "markeredgewidth": edge * POINT * size.line,
        }
        axes.plot([x[i] for i in at], [y[i] for i in at], linestyle="none", zorder=3, **look, **how)
        first = first or look
    return first


def _area(axes: Any, trace: Mapping[str, Any], x: Any, y: Any, before: tuple[Any, Any] | None) -> Patch | None:
    """The area down to the trace before (`tonexty`), or inside the outlines that NaN separates (`toself`)."""
    color = _color(trace.get("fillcolor"))
    if trace["fill"] == "tonexty":
        if before is None or not len(before[0]):
            return None
        x, y = np.concatenate([before[0], x[::-1]]), np.concatenate([before[1], y[::-1]])
        known = np.isfinite(x) & np.isfinite(y)
        outlines = [(x[known], y[known])]
    else:
        rows = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
        outlines = [(x[part], y[part]) for part in np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1) if len(part)]
    for outline in outlines:
        axes.fill(*outline, color=color, linewidth=0)
    return Patch(color=color, linewidth=0) if any(len(outline[0]) for outline in outlines) else None


def _errors(axes: Any, error: Mapping[str, Any], x: Any, y: Any, color: Any) -> None:
    low, high = (np.asarray(error[part], float) for part in ("arrayminus", "array"))
    known = np.isfinite(y)
    axes.errorbar(
        np.asarray(x)[known], y[known], np.array([low[known], high[known]]), fmt="none", ecolor=color, elinewidth=0.75, capsize=2
    )


def _bars(axes: Any, trace: Mapping[str, Any], x: Any, names: Any) -> None:
    """Horizontal bars from `base`, one per name."""
    base = points(trace.get("base"))
    known = np.isfinite(base) & np.isfinite(x)
    colors = np.array([to_rgba(color, trace.get("opacity")) for color in trace["marker"]["color"]])
    labels = [plain(name) for name in names]
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(-0.6, len(labels) - 0.4)
    if known.any():
        axes.barh(np.flatnonzero(known), x[known], trace["width"], base[known], color=colors[known])


def _color(color: str | None) -> Any:
    """A colour as matplotlib reads it: #rrggbb, #rrggbbaa or rgba(...)."""
    found = re.fullmatch(r"rgba\((\d+), ?(\d+), ?(\d+), ?([\d.]+)\)", color or "")
    if found:
        red, green, blue, alpha = (float(part) for part in found.groups())
        return (red / 255, green / 255, blue / 255, alpha)
    return to_rgba(color or DEFAULT)
