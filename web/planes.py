"""Complex eigenvalues where they are: on the unit disc, or on the half-plane of continuous time; `static/planes.js` does so too.

Of each conjugate pair the one above the real axis is drawn. A trace's `plane` says what its two series are: "disc" the angle and
the absolute value of lambda_bar, "half" the decay rate -Re lambda and Im lambda.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stablessm_core.typed_arrays import encode

MAX_PLACES = 512  # of eigenvalues whose first and newest places are marked; of more every n-th
HALF_CIRCLE = np.linspace(0, np.pi, 91)
Floats = NDArray[np.floating[Any]]
Series = Mapping[str, Floats]


def on_plane(
    meta: Mapping[str, Any], name: str, first: Series | None, second: Series | None, column: int, *, log: bool = False
) -> dict[str, Any]:  # fmt: skip
    """x and y of a trace: the `path` of an eigenvalue, its newest place (`end`), the first and the newest of all (`then`, `now`),
    the `boundary`, a mark where some are `lost` to the finite numbers.

    first, second: the trace's two series as buckets (see `web.binding.statistics`), None where one is not recorded. log: whether
    the vertical axis is logarithmic.
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
    """Of each eigenvalue its first finite value; NaN where it has none."""
    last = series["last"]
    finite = np.isfinite(last)
    return np.where(finite.any(axis=0), last[finite.argmax(axis=0), np.arange(last.shape[1])], np.nan)


def newest(series: Series) -> Floats:
    """The newest row with a finite value in it, or the first."""
    rows = np.flatnonzero(np.isfinite(series["last"]).any(axis=1))
    row: Floats = series["last"][rows[-1] if len(rows) else 0]
    return row


def _every(width: int) -> int:
    # odd: eigenvalues lie channel by channel, and of an even number of modes an even stride would always take the same ones
    return 1 if width <= MAX_PLACES else -(-width // MAX_PLACES) | 1


def _placed(plane: str, first: Floats, second: Floats) -> dict[str, Any]:
    with np.errstate(invalid="ignore", over="ignore"):
        a, b = first.astype(np.float64), second.astype(np.float64)
        x, y = (b * np.cos(a), np.abs(b * np.sin(a))) if plane == "disc" else (-a, np.abs(b))
    known = np.isfinite(x) & np.isfinite(y)
    return {part: encode(np.where(known, values, np.nan).astype(np.float32)) for part, values in (("x", x), ("y", y))}


def _lost(first: Series, second: Series) -> dict[str, Any]:
    """A mark in the corner, where no eigenvalue is looked for."""
    bad = ~(np.isfinite(first["last"][-1]) & np.isfinite(second["last"][-1]))
    if not bad.any():
        return {"x": [], "y": [], "visible": False}
    text = f"{int(bad.sum())} of {len(bad)} not finite at step {first['step'][-1]:.0f}"
    return {"x": [0.99], "y": [0.97], "text": [text], "visible": True}
