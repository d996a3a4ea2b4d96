"""Puts the data of series into the figures of `web.figures`; each trace's `meta` states what the trace shows.

`static/chart/bind.js` does the same in the browser, and a test runs both on the same data.

The data of a series are `step` (n,) and either `value` (n,) or (n, width), or the buckets `min`, `max`, `last`, `nonfinite`,
each (n, width). Lines contain only values that the axis can show. NaN, infinities and, on logarithmic axes, values of zero
or less become markers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stablessm_core.telemetry.nonfinite import INFINITY, MINUS_INFINITY, NAN, NONFINITE
from stablessm_core.telemetry.typed_arrays import encode
from web.charts.parts import ZERO, ZERO_WEIGHT
from web.planes import on_plane

Floats = NDArray[np.floating[Any]]
SeriesData = Mapping[str, Any]

MAX_LINES, TOP_LINES = 24, 8
MAX_ROWS, MAX_COLUMNS, MAX_MARKERS = 256, 1000, 100
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SYMBOLS = {NAN: "x", INFINITY: "triangle-up", MINUS_INFINITY: "triangle-down"}
LEFT_EDGE = 0.012
EDGE = {NAN: 0.97, INFINITY: 0.97, MINUS_INFINITY: 0.03}


def statistics(data: SeriesData) -> dict[str, Floats]:
    """The series as buckets: step (n,), min, max, last, nonfinite (n, width); a raw value is a bucket with one value."""
    step = np.asarray(data["step"], np.float64)
    if "value" in data:
        value = _by_step(data["value"], len(step))
        finite = np.where(np.isfinite(value), value, np.nan)
        return {"step": step, "min": finite, "max": finite, "last": value, "nonfinite": (~np.isfinite(value)).astype(np.float32)}
    return {"step": step} | {k: _by_step(data[k], len(step)) for k in ("min", "max", "last", "nonfinite")}


def _by_step(values: Any, steps: int) -> np.ndarray:
    """The values with shape (steps, width). A series without steps has the width of its array, 1 if the array has one axis."""
    array = np.asarray(values)
    return array.reshape(steps, -1) if steps else array.reshape(0, array.shape[1] if array.ndim == 2 else 1)


def top_eigenvalues(data: SeriesData, k: int = TOP_LINES, unless: SeriesData | None = None) -> list[int]:
    """The k columns with the largest values at any step, sorted by index; columns that became non-finite are chosen first.

    unless: the gradient from which a ratio is computed; if given, a column became non-finite if this gradient did."""
    s = statistics(data)
    lost = s if unless is None else statistics(unless)
    if not len(s["step"]):
        return list(range(min(k, s["last"].shape[1])))
    peak = np.fmax.reduce(s["max"], axis=0)
    score = np.where(lost["nonfinite"].sum(axis=0) > 0, np.inf, np.where(np.isnan(peak), -np.inf, peak))
    return sorted(np.argsort(-score, kind="stable")[:k].tolist())


def eigenvalue_items(columns: Sequence[int]) -> list[dict[str, Any]]:
    return [
        {"key": str(c), "column": c, "label": f"eigenvalue {c}", "color": f"line-{i % 8}", "dash": DASHES[i // 8 % 6]}
        for i, c in enumerate(columns)
    ]


def bind(
    figure: Mapping[str, Any],
    data: Mapping[str, SeriesData],
    *,
    layer: int | str = 0,
    items: Sequence[Mapping[str, Any]] | None = None,
    alerts: Sequence[Mapping[str, Any]] = (),
    colors: Mapping[str, str] | None = None,
    eigenvalues: int = 0,
    bounded: bool = True,
) -> dict[str, Any]:
    """The figure with its data as typed arrays.

    layer: the layer's number, or the id of one of its records. items: a list of {"key", "label", "color", "dash", "column"?}; a
    template trace is copied for each of the first MAX_LINES items. By default, eigenvalue charts show the largest eigenvalues.
    eigenvalues: the number of eigenvalues in the record; if several eigenvalues share a gate or step size, each line shows the
    shared value. bounded: whether |lambda_bar| = 1 is a boundary of stability. Traces of series that `data` lacks stay empty.
    """
    out: dict[str, Any] = {"data": [], "layout": deepcopy(dict(figure["layout"]))}
    own = [name.replace("{layer}", str(layer)) for name in out["layout"].get("meta", {}).get("alerts", [])]
    shown = [a for a in alerts if a["series"] in own]
    cached: dict[str, dict[str, Floats]] = {}
    for template in figure["data"]:
        meta = template["meta"]
        name = meta.get("series", "").replace("{layer}", str(layer))
        copies: Sequence[Mapping[str, Any]] = [{}]
        if meta.get("each") == "eigenvalue" and items is None:
            ranked = data.get(meta.get("top", name).replace("{layer}", str(layer)))
            unless = data.get(meta.get("unless", "").replace("{layer}", str(layer)))
            top = [] if ranked is None else top_eigenvalues(ranked, unless=unless)
            copies = [] if ranked is None else eigenvalue_items(_first_of(top, ranked, eigenvalues))
        elif "each" in meta:
            copies = (items or [])[:MAX_LINES]
        for item in copies:
            trace = _copy(template, item, colors or {})
            if not bounded:
                trace["name"] = meta.get("unbounded", trace.get("name", ""))
            key = name.replace("{run}", str(item.get("key"))).replace("{map}", str(item.get("key")))
            partner = meta.get("with", meta.get("unless", "")).replace("{layer}", str(layer))
            cached |= {one: statistics(data[one]) for one in (key, partner) if one in data and one not in cached}
            log = out["layout"]["yaxis"].get("type") == "log"
            column = _shared(item.get("column", 0), cached.get(key), eigenvalues)
            if meta.get("plane"):
                filled = on_plane(meta, trace.get("name", ""), cached.get(key), cached.get(partner), column, log=log)
            else:
                filled = _fill(trace, cached.get(key), cached.get(partner), column, items or [], shown, log, colors or {})
            marker = trace.get("marker", {}) | filled.pop("marker", {})
            trace.update(filled, **({"marker": marker} if marker else {}))
            out["data"].append(trace)
    return out


def _shared(eigenvalue: int, s: Mapping[str, Floats] | None, eigenvalues: int) -> int:
    """The column of an eigenvalue. In a series with fewer columns than eigenvalues, neighbouring eigenvalues share a column."""
    width = s["last"].shape[1] if s else 0
    return eigenvalue * width // eigenvalues if 0 < width < eigenvalues else eigenvalue


def _first_of(columns: Sequence[int], data: SeriesData, eigenvalues: int) -> list[int]:
    """The first eigenvalue of each column."""
    width = statistics(data)["last"].shape[1]
    return [column * eigenvalues // width for column in columns] if width < eigenvalues else list(columns)


def _copy(template: Mapping[str, Any], item: Mapping[str, Any], colors: Mapping[str, str]) -> dict[str, Any]:
    trace: dict[str, Any] = deepcopy(dict(template))
    for field in ("name", "hovertemplate") if item else ():
        for word in ("key", "label", "note"):
            # Plotly interprets markup in names
            text = str(item.get(word, "")).replace("&", "&amp;").replace("<", "&lt;")
            trace[field] = trace.get(field, "").replace("{" + word + "}", text)
    if item.get("color"):
        trace["meta"]["color"] = item["color"]
    color = colors.get(trace["meta"].get("color", "")) or (item.get("color") and colors.get("muted"))  # a map may have no colour
    for part in ("line", "marker"):
        if color and "color" in trace.get(part, {}):
            trace[part]["color"] = color
        if item.get("dash") and "dash" in trace.get(part, {}):
            trace[part]["dash"] = item["dash"]
    return trace


def _fill(
    trace: Mapping[str, Any],
    s: dict[str, Floats] | None,
    unless: dict[str, Floats] | None,
    column: int,
    items: Sequence[Mapping[str, Any]],
    alerts: Sequence[Mapping[str, Any]],
    log: bool,
    colors: Mapping[str, str],
) -> dict[str, Any]:
    field, meta = trace["meta"]["field"], trace["meta"]
    if field == "alerts":
        return _alerts([a for a in alerts if a["severity"] == meta["severity"]])
    if field in ("range", "median_of", "zero_of"):
        return _ranges(field, meta, items, colors)
    if s is None or not len(s["step"]):
        return {"x": [], "y": [], "visible": field in ("last", "heat") and not meta.get("optional")}
    step = s["step"]
    if field == "constant":
        return {"x": [float(step[0]), float(step[-1])], "y": [meta["value"]] * 2}
    if field == "nonpositive" and not log:
        return {"x": [], "y": [], "visible": False}
    if field in ("nonfinite", "nonpositive", "zero_weight"):
        return _marks(s, field, unless)
    if field.startswith("heat"):
        return _heat(s, meta, unless)
    if field == "last":
        y = s["last"][:, column]
    elif field == "median":
        y = _median(s["last"])
    else:
        low, high = _band(s, log)
        y = low if field == "min" else high
    shown = np.isfinite(y) & ((y > 0) | (not log))
    return {"x": encode(step), "y": encode(np.where(shown, y, np.nan).astype(np.float32))}


def _band(s: dict[str, Floats], log: bool) -> tuple[Floats, Floats]:
    """Smallest and largest value over all eigenvalues at each step, without gaps, because a filled area would bridge every gap.

    At a step without a finite value, both edges repeat an earlier value, so the band has zero height there. On a logarithmic
    axis, values of zero or less are replaced by the smallest positive value.
    """
    low, high = np.fmin.reduce(s["min"], axis=1), np.fmax.reduce(s["max"], axis=1)
    if log:
        positive = np.concatenate([low, high])
        floor = positive[positive > 0].min(initial=np.inf)
        low, high = (np.where(edge <= 0, floor, edge) for edge in (low, high))
    known = np.flatnonzero(np.isfinite(low) & np.isfinite(high))
    if not len(known):
        return low, high
    before = known[np.maximum(np.searchsorted(known, np.arange(len(low)), side="right") - 1, 0)]
    lost = ~np.isin(np.arange(len(low)), known)
    return np.where(lost, low[before], low), np.where(lost, low[before], high)


def _median(values: Floats) -> Floats:
    last = np.sort(np.where(np.isfinite(values), values, np.nan), axis=1)  # NumPy sorts NaN to the end
    count = np.maximum(np.isfinite(last).sum(axis=1), 1)
    rows = np.arange(len(last))
    middle: Floats = (last[rows, (count - 1) // 2] + last[rows, count // 2]) / 2
    return middle


def nonfinite_kinds(s: dict[str, Floats]) -> NDArray[np.int8]:
    """The kind of each cell, (n, width): -1 if finite, otherwise the index of its kind in NONFINITE: 0 NaN, 1 +Inf, 2 -Inf.

    A bucket with non-finite values whose last value is finite or NaN has kind 0."""
    kind = np.where(s["nonfinite"] > 0, 0, -1)
    kind[np.isposinf(s["last"])] = 1
    kind[np.isneginf(s["last"])] = 2
    return kind.astype(np.int8)


def _marks(s: dict[str, Floats], field: str, unless: dict[str, Floats] | None) -> dict[str, Any]:
    if field == "nonpositive":
        hit = s["min"] <= 0
        rows = _thin(hit.any(axis=1))
        text = [f"step {s['step'][r]:.0f}: {_which(hit[r])} at {np.nanmin(s['min'][r]):.6g}" for r in rows]
        return {"x": encode(s["step"][rows]), "y": [0.03] * len(rows), "text": text, "visible": len(rows) > 0}
    kind = nonfinite_kinds(s)
    harmless = np.zeros_like(kind, bool)
    if unless is not None and np.array_equal(unless["step"], s["step"]):
        harmless = (kind >= 0) & (nonfinite_kinds(unless) < 0)
    if field == "zero_weight":
        rows = _thin(harmless.any(axis=1))
        text = [f"step {s['step'][r]:.0f}: {ZERO_WEIGHT} in {_which(harmless[r])}" for r in rows]
        return {"x": encode(s["step"][rows]), "y": [0.97] * len(rows), "text": text, "visible": len(rows) > 0}
    kind[harmless] = -1
    rows = _thin((kind >= 0).any(axis=1))
    names = [NONFINITE[int(kind[r][kind[r] >= 0].max())] for r in rows]
    text = [f"step {s['step'][r]:.0f}: {n}{_which(kind[r] >= 0, ' in ')}" for r, n in zip(rows, names, strict=True)]
    marker = {"size": 9, "symbol": [SYMBOLS[n] for n in names]}
    y = [EDGE[n] for n in names]
    return {"x": encode(s["step"][rows]), "y": y, "text": text, "visible": len(rows) > 0, "marker": marker}


def _thin(hit: Any) -> NDArray[np.intp]:
    """The rows to mark; if more than MAX_MARKERS, the first row of each uninterrupted stretch and evenly spaced rows."""
    rows = np.flatnonzero(hit)
    if len(rows) <= MAX_MARKERS:
        return rows
    begins = rows[np.diff(rows, prepend=-2) > 1][:MAX_MARKERS]
    return np.union1d(begins, rows[:: -(-len(rows) // MAX_MARKERS)])


def _which(hit: NDArray[np.bool_], before: str = "") -> str:
    if len(hit) == 1:
        return "" if before else "value"
    columns = np.flatnonzero(hit)
    return f"{before}eigenvalue {columns[0]}" + (f" and {len(columns) - 1} more" if len(columns) > 1 else "")


def _heat(s: dict[str, Floats], meta: Mapping[str, Any], unless: dict[str, Floats] | None) -> dict[str, Any]:
    n, width = s["last"].shape
    per_row, per_column = -(-width // MAX_ROWS), -(-n // MAX_COLUMNS)
    rows, columns = np.arange(0, width, per_row), np.arange(0, n, per_column)
    x, y = s["step"][columns], rows.astype(np.float64)

    def largest(a: NDArray[Any]) -> NDArray[Any]:
        reduced: NDArray[Any] = np.fmax.reduceat(np.fmax.reduceat(a, columns, axis=0), rows, axis=1).T
        return reduced

    kind = largest(nonfinite_kinds(s))
    if meta["field"] == "heat_rows":
        harmless = unless is not None and not unless["nonfinite"].any()
        return _lost_rows(np.full_like(kind, -1) if harmless else kind, s["step"][columns], rows)
    top = largest(s["max"])
    zero = (kind < 0) & (top == 0)
    if meta["field"] == "heat_is":
        cells = zero if meta["kind"] == ZERO else kind == NONFINITE.index(meta["kind"])
        if not cells.any() and meta["kind"] != ZERO:
            return {"z": [], "visible": False}
        # the smallest rectangle that contains all these cells, extended by a row or column on each side, because Plotly draws
        # each cell half way to its neighbours
        hits = (np.flatnonzero(cells.any(axis=k)) for k in (1, 0))
        down, along = (slice(max(0, at[0] - 1), at[-1] + 2) if len(at) else slice(0, 2) for at in hits)
        z = np.where(cells[down, along], 1.0, np.nan).astype(np.float32)
        return {"x": encode(x[along]), "y": encode(y[down]), "z": encode(z), "visible": True, "zmin": 0, "zmax": 1}
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.where((kind >= 0) | ~(top > 0), np.nan, np.log10(top))
    finite = z[np.isfinite(z)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    low = max(low, high - 12)  # at most 12 decades, so that a few tiny values do not flatten the colours of all other values
    return {"x": encode(x), "y": encode(y), "z": encode(z.astype(np.float32)), "zmin": low, "zmax": high}


def _lost_rows(kind: NDArray[Any], step: Floats, rows: NDArray[Any]) -> dict[str, Any]:
    """A mark at the right edge of each row with a non-finite cell."""
    hit = np.flatnonzero((kind >= 0).any(axis=1))
    first = (kind[hit] >= 0).argmax(axis=1)
    text = [f"eigenvalue {rows[r]}: {NONFINITE[kind[r, i]]} at step {step[i]:.0f}" for r, i in zip(hit, first, strict=True)]
    return {"x": [1] * len(hit), "y": [float(rows[r]) for r in hit], "text": text, "visible": len(hit) > 0}


def _alerts(alerts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    # one vertical line per alert, with a diamond at the line's top; nulls separate the lines
    x: list[Any] = []
    y: list[Any] = []
    text: list[str] = []
    size: list[int] = []
    ids: list[int | None] = []
    for alert in alerts[-50:]:
        message = str(alert["message"]).replace("&", "&amp;").replace("<", "&lt;")
        x += [alert["step"], alert["step"], None]
        y += [0, 1, None]
        text += ["", f"step {alert['step']}: {message}", ""]
        size += [0, 10, 0]
        ids += [None, alert.get("id"), None]
    return {"x": x, "y": y, "text": text, "customdata": ids, "marker": {"size": size}, "visible": bool(x)}


def _ranges(field: str, meta: Mapping[str, Any], items: Sequence[Mapping[str, Any]], colors: Mapping[str, str]) -> dict[str, Any]:
    def numbers(name: str) -> Floats:
        # JSON stores non-finite numbers as strings, which float() parses
        values = np.array([float(i[name]) if i.get(name) is not None else np.nan for i in items])
        return np.where(np.isfinite(values) & (values >= 0), values, np.nan)

    labels = [str(i["label"]).replace("&", "&amp;").replace("<", "&lt;") for i in items]
    ends = np.concatenate([numbers(name) for name in ("min", "q05", "median", "max")])
    floor = 0.1 * float(ends[ends > 0].min(initial=1.0))  # where zero is drawn on the logarithmic axis
    median = numbers("median")
    if field == "median_of":
        return {"x": encode(np.where(median > 0, median, np.nan)), "y": labels}
    if field == "zero_of":
        at_zero = [label for label, value in zip(labels, median, strict=True) if value == 0]
        text = [f"{label}: the median is exactly 0" for label in at_zero]
        return {"x": [LEFT_EDGE] * len(at_zero), "y": at_zero, "text": text, "visible": bool(at_zero)}
    low, high = numbers(meta["low"]), numbers(meta["high"])
    text = [
        f"{label}: {a:.3g} to {b:.3g}, {i['finite']:,} of {i['total']:,} finite"
        for label, a, b, i in zip(labels, low, high, items, strict=True)
    ]
    marker = {"color": [colors.get(i.get("color", ""), "#5b6577") for i in items]}
    base = np.maximum(low, floor)
    return {"base": encode(base), "x": encode(np.maximum(high, floor) - base), "y": labels, "hovertext": text, "marker": marker}
