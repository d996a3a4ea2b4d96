"""The comparison's charts of many runs as figures: a line per run, or a band with its median per group.

`static/compare/figure.js` draws the same charts on the page, where the table of runs is the legend (a test compares the two).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stablessm_core.spec.layers import layers_text
from stablessm_core.telemetry.series import larger_is_better
from stablessm_core.telemetry.typed_arrays import decode, encode
from web.binding import Floats, SeriesData, statistics
from web.log_ticks import log_ticks
from web.looks import group_looks, run_looks
from web.palette import COLORS

AXES = {"step": "step", "tokens": "tokens", "seconds": "training time (s, at each run's mean speed)"}
BAND_POINTS = 200
FAINT = 0.25  # opacity of a line whose smoothed line is drawn above it
NAMED = 24  # maximum number of lines with a legend; a longer legend would be larger than the figure


def shown_runs(compare: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each run's key, label, layer, map, group, outcome, colour, dash and units per step on each axis.

    compare: JSON of GET /api/compare."""
    group_of = {run: group["label"] for group in compare["groups"] for run in group["runs"]}
    kinds = [
        {"layer": layers_text(run["config"]), "map": run["forms"][0]["map"] if run["forms"] else ""} for run in compare["runs"]
    ]
    runs = []
    for run, end, kind, look in zip(compare["runs"], compare["ends"], kinds, run_looks(kinds), strict=True):
        per_step = {"step": 1, "tokens": end["tokens_per_step"], "seconds": end["seconds_per_step"]}
        facts = {"label": run["name"] or f"run {run['id']}", "group": group_of.get(run["id"], "all")}
        runs.append({"key": run["id"], **facts, "outcome": end["outcome"], "per_step": per_step, **kind, **look})
    return runs


def range_items(pooled: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The bars of the chart of ranges, one per map, from `pooled` of GET /api/compare/curves."""
    return [
        {
            **one,
            "label": f"{one['reparameterization']} ({one['runs']} run{'' if one['runs'] == 1 else 's'})",
            "color": f"map-{one['reparameterization'].split(', ')[0]}",
        }
        for one in pooled
    ]


def compared_figure(
    figure: Mapping[str, Any],
    runs: Sequence[Mapping[str, Any]],
    curves: Mapping[int, SeriesData],
    *,
    lines: Sequence[int],
    groups: bool,
    x: str = "step",
    y: str = "log",
    between: tuple[float, float] | None = None,
    smooth: float = 0,
    metric: str = "",
) -> dict[str, Any]:
    """The chart with a line for each run in `lines`; with `groups`, also a band for each group of `runs`.

    smooth: weight of the exponential mean over each line's points, from 0 to below 1. The line itself stays visible, faintly.
    metric: the series of the curves, which is the title of the vertical axis; "" for the chart's own series and title."""
    read = {key: statistics(data) for key, data in curves.items()}
    there = [run for run in runs if run["key"] in read]
    drawn = [run for run in there if run["key"] in lines and run["per_step"][x] is not None]
    names = list(dict.fromkeys(run["group"] for run in there)) if groups else []
    traces: list[dict[str, Any]] = []
    worst = -np.inf if larger_is_better(metric) else np.inf
    members = {name: [run for run in there if run["group"] == name] for name in names}
    for name, look in group_looks(members).items():
        traces += _band_traces(name, members[name], look, read, x, worst)
    raw = [_line(run, read[run["key"]], x, y == "log", len(drawn)) for run in drawn]
    if smooth > 0:
        traces += [{**line, "opacity": FAINT, "showlegend": False} for line in raw]
        traces += [
            _smoothed(line, read[run["key"]], run["per_step"][x], smooth, y == "log")
            for run, line in zip(drawn, raw, strict=True)
        ]
    else:
        traces += raw
    traces.append(_lost([(run, read[run["key"]]) for run in drawn], x))
    layout = dict(figure["layout"])
    layout["xaxis"] = {**layout["xaxis"], "title": {"text": AXES[x]}}
    if between:
        layout["xaxis"] |= {"range": list(between), "autorange": False}
    layout["yaxis"] = {**layout["yaxis"], "type": y, **({"title": {"text": plain(metric), "standoff": 8}} if metric else {})}
    if y == "log":
        layout["yaxis"] |= log_ticks(*_extent(traces))
    layout["showlegend"] = len(drawn) + len(names) <= NAMED
    return {"data": traces, "layout": layout}


def _line(run: Mapping[str, Any], s: dict[str, Floats], x: str, log: bool, lines: int) -> dict[str, Any]:
    """The line through the smallest and the largest value of each bucket, so that no extreme is lost."""
    ends = np.stack([s["min"][:, 0], s["max"][:, 0]], axis=1).astype(np.float64)
    ends[~np.isfinite(ends) | (log & (ends <= 0))] = np.nan
    ends = np.where(np.isnan(ends), ends[:, ::-1], ends)  # if one end of a bucket cannot be shown, use the other end
    at = np.repeat(s["step"] * run["per_step"][x], 2)
    crowded = lines > NAMED
    look = {"color": _color(run), "dash": "solid" if crowded else run["dash"], "width": 1 if crowded else 1.6}
    line = {"type": "scatter", "mode": "lines", "name": plain(run["label"]), "line": look, "connectgaps": False}
    return line | {"x": encode(at), "y": encode(ends.reshape(-1).astype(np.float32))}


def _smoothed(line: Mapping[str, Any], s: dict[str, Floats], per_step: float, weight: float, log: bool) -> dict[str, Any]:
    """The line's trace with the exponential mean of the last value of each bucket, divided by 1 - weight^t. Without the values
    that the axis cannot show."""
    mean = np.full(len(s["step"]), np.nan)
    total = norm = 0.0
    for i, value in enumerate(s["last"][:, 0].astype(np.float64)):
        if np.isfinite(value) and not (log and value <= 0):
            total, norm = weight * total + (1 - weight) * value, weight * norm + 1 - weight
            mean[i] = total / norm
    return {**line, "x": encode(s["step"] * per_step), "y": encode(mean.astype(np.float32))}


def _extent(traces: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """The smallest and the largest positive number on the vertical axis; (0, 0) if there is none."""
    known = [decode(trace["y"]) for trace in traces if "yaxis" not in trace]
    shown = np.concatenate([*known, np.empty(0)])
    shown = shown[np.isfinite(shown) & (shown > 0)]
    return (float(shown.min()), float(shown.max())) if shown.size else (0.0, 0.0)


def _lost(drawn: Sequence[tuple[Mapping[str, Any], dict[str, Floats]]], x: str) -> dict[str, Any]:
    """A cross at the first non-finite point of each run."""
    at, text = [], []
    for run, s in drawn:
        rows = np.flatnonzero(s["nonfinite"].sum(axis=1))
        if len(rows):
            step = float(s["step"][rows[0]])
            at.append(step * run["per_step"][x])
            text.append(plain(f"{run['label']}: not finite from step {step:.0f}"))
    marker = {"symbol": "x", "size": 8, "color": COLORS["danger"]}
    place = {"type": "scatter", "mode": "markers", "yaxis": "y2", "cliponaxis": False, "showlegend": False}
    return place | {"name": "not finite", "x": at, "y": [0.97] * len(at), "text": text, "marker": marker}


def band(
    members: Sequence[tuple[Mapping[str, Any], dict[str, Floats]]], x: str, worst: float
) -> tuple[Floats, NDArray[np.float64]]:
    """(points of the axis, [low, median, high] at each point): median and quartiles over the runs of a group.

    worst: the infinity that is worse than every number: -inf if larger values are better. Beyond its last step, a lost run has
    this value, and so has every value that is not finite, so the median is NaN where half of the group is lost. A run that
    finished earlier, or still trains, is omitted beyond its last step.
    """
    known = [
        (run, s["step"] * run["per_step"][x], s["last"][:, 0]) for run, s in members if run["per_step"][x] and len(s["step"])
    ]
    end = max((at[-1] for _, at, _ in known), default=0.0)
    places = end * np.arange(1, BAND_POINTS + 1) / BAND_POINTS
    out = np.full((3, BAND_POINTS), np.nan)
    for i, place in enumerate(places):
        values = []
        for run, at, last in known:
            row = int(np.searchsorted(at, place, side="right")) - 1
            if row < 0:
                continue
            if row == len(at) - 1 and at[row] < place - end / BAND_POINTS:
                values += [worst] if run["outcome"] == "lost" else []
            else:
                values.append(float(last[row]) if np.isfinite(last[row]) else worst)
        if values:
            out[:, i] = _quantiles(np.sort(values))
    return places, out


def _quantiles(values: Floats) -> Floats:
    at = np.array([0.25, 0.5, 0.75]) * (len(values) - 1)
    low, rest = np.floor(at).astype(int), at % 1
    with np.errstate(invalid="ignore"):
        found = np.where(rest > 0, values[low] + rest * (values[np.minimum(low + 1, len(values) - 1)] - values[low]), values[low])
    return np.where(np.isfinite(found), found, np.nan)


def _band_traces(
    name: str,
    members: Sequence[Mapping[str, Any]],
    look: Mapping[str, str],
    read: Mapping[int, dict[str, Floats]],
    x: str,
    worst: float,
) -> list[dict[str, Any]]:
    at, (low, median, high) = band([(run, read[run["key"]]) for run in members], x, worst)
    color, dash = _color(look), look["dash"]
    line = {"type": "scatter", "mode": "lines", "hoverinfo": "skip", "connectgaps": False}
    x_edge, y_edge = _outline(at, low, high)
    area = {"line": {"width": 0}, "showlegend": False, "fill": "toself", "fillcolor": f"{color}22"}
    middle = {"name": plain(f"{name} ({len(members)})"), "line": {"color": color, "dash": dash, "width": 2.4}}
    return [
        line | area | {"x": encode(x_edge), "y": encode(y_edge.astype(np.float32))},
        line | middle | {"x": encode(at), "y": encode(median.astype(np.float32))},
    ]


def _outline(at: Floats, low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """An outline around each stretch where both edges of the band are finite: along the upper edge and back along the lower."""
    known = np.flatnonzero(np.isfinite(low) & np.isfinite(high))
    x: list[Floats] = [np.empty(0)]
    y: list[Floats] = [np.empty(0)]
    for part in np.split(known, np.flatnonzero(np.diff(known) > 1) + 1) if len(known) else []:
        x += [at[part], at[part][::-1], np.array([np.nan])]
        y += [high[part], low[part][::-1], np.array([np.nan])]
    return np.concatenate(x), np.concatenate(y)


def _color(look: Mapping[str, str]) -> str:
    return COLORS.get(look["color"], COLORS["muted"])


def plain(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")  # Plotly reads markup in names
