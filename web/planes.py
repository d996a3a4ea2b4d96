"""Places complex eigenvalues on the unit disc or the half-plane; `static/chart/planes.js` does the same in the browser.

Each conjugate pair is drawn as its eigenvalue above the real axis. A trace's `plane` states what its two series are: for "disc"
the angle and the absolute value of lambda_bar, for "half" the decay rate -Re lambda and Im lambda.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stablessm_core.telemetry.typed_arrays import encode

MAX_PLACES = 512  # maximum number of eigenvalues with marked points; if there are more, every n-th one is marked
HALF_CIRCLE = np.linspace(0, np.pi, 91)
Floats = NDArray[np.floating[Any]]
Series = Mapping[str, Floats]


def on_plane(
    meta: Mapping[str, Any], name: str, first: Series | None, second: Series | None, column: int, *, log: bool = False
) -> dict[str, Any]:  # fmt: skip
    """x and y of a trace, which shows one of these: the `path` of an eigenvalue, its newest point (`end`), the first or the
    newest points of all eigenvalues (`then`, `now`), the `boundary`, or a mark if some eigenvalues are not finite (`lost`).

    first, second: the trace's two series as buckets (see `web.binding.statistics`), None if a series was not recorded. log:
    whether the vertical axis is logarithmic.
    """
    field, plane = meta["field"], meta["plane"]
    if field == "boundary" and plane == "disc":
        return {"x": encode(np.cos(HALF_CIRCLE)), "y": encode(np.sin(HALF_CIRCLE))}
    if first is None or second is None or not len(first["step"]) or not len(second["step"]):
        return {"x": [], "y": [], "visible": field in ("path", "end", "now")}
    if field == "path":
        rows = min(len(first["step"]), len(second["step"]))
        return _placed(plane, first["last"][:rows, column], second["last"][:rows, column])
    if field == "end":
        return _placed(plane, newest(first)[[column]], newest(second)[[column]])
    if field == "boundary":
        reach = np.abs(np.concatenate([earliest(second), newest(second)]))
        reach = reach[np.isfinite(reach) & (reach > 0)]
        return {"x": [0, 0], "y": [float(reach.min(initial=1)) if log else 0, float(reach.max(initial=1e-3))]}
    if field == "lost":
        return _lost(first, second)
    every = _every(first["last"].shape[1])
    chosen = np.arange(0, first["last"].shape[1], every)
    of = newest if field == "now" else earliest
    found = _placed(plane, of(first)[chosen], of(second)[chosen])
    return found | {"customdata": chosen.tolist(), "name": name + (f" (1 of {every})" if every > 1 else "")}


def earliest(series: Series) -> Floats:
    """The first finite value of each eigenvalue, or NaN if no value is finite."""
    last = series["last"]
    finite = np.isfinite(last)
    return np.where(finite.any(axis=0), last[finite.argmax(axis=0), np.arange(last.shape[1])], np.nan)


def newest(series: Series) -> Floats:
    """The newest row with a finite value, or the first row if no value is finite."""
    rows = np.flatnonzero(np.isfinite(series["last"]).any(axis=1))
    row: Floats = series["last"][rows[-1] if len(rows) else 0]
    return row


def _every(width: int) -> int:
    # the stride is odd, because eigenvalues are ordered by channel: if the number of modes per channel is even, an even stride
    # would skip the same modes of every channel
    return 1 if width <= MAX_PLACES else -(-width // MAX_PLACES) | 1


def _placed(plane: str, first: Floats, second: Floats) -> dict[str, Any]:
    with np.errstate(invalid="ignore", over="ignore"):
        a, b = first.astype(np.float64), second.astype(np.float64)
        x, y = (b * np.cos(a), np.abs(b * np.sin(a))) if plane == "disc" else (-a, np.abs(b))
    known = np.isfinite(x) & np.isfinite(y)
    return {part: encode(np.where(known, values, np.nan).astype(np.float32)) for part, values in (("x", x), ("y", y))}


def _lost(first: Series, second: Series) -> dict[str, Any]:
    """A mark in the corner of the chart if eigenvalues are not finite."""
    bad = ~(np.isfinite(first["last"][-1]) & np.isfinite(second["last"][-1]))
    if not bad.any():
        return {"x": [], "y": [], "visible": False}
    text = f"{int(bad.sum())} of {len(bad)} not finite at step {first['step'][-1]:.0f}"
    return {"x": [0.99], "y": [0.97], "text": [text], "visible": True}
