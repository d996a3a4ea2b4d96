"""Runs side by side: what differs in their configurations, how their curves and gradient-over-weight ratios compare.

Nothing is averaged over runs that left the finite numbers without saying so: every mean stands beside finite / total.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sqlalchemy.orm import Session

from server.database.models import Run
from server.series.forms import forms_of_run, map_names
from server.series.reading import Layout, SeriesData, read_series
from stablessm_core.telemetry.series import TRAIN_LOSS

MAX_RUNS = 100
CURVE_POINTS = 500
MAX_RATIO = "max_grad_over_weight"
GROUP_BY = "model.reparameterization.name"
ABSENT = None  # how a field that a configuration does not have is shown


@dataclass(frozen=True)
class Comparison:
    """`differences`: {field, values} in the order of the runs; `ranges` one per run; `groups` by the fields asked for;
    `curves`: per run the series `train/loss` and `max_grad_over_weight` (over all layers and eigenvalues)."""

    runs: list[Run]
    differences: list[dict[str, Any]]
    ranges: list[dict[str, Any]]
    groups: list[dict[str, Any]]
    curves: dict[int, dict[str, SeriesData]]


def compare(
    session: Session, runs: Sequence[Run], *, group_by: Sequence[str] = (GROUP_BY,), points: int = CURVE_POINTS
) -> Comparison:
    """Compare the runs. `group_by`: dotted configuration paths. Raises ValueError for a path no configuration has."""
    flat = [dict(_flatten(run.config)) for run in runs]
    for path in group_by:
        if runs and not any(path in config for config in flat):
            raise ValueError(f"group_by has {path[:80]!r}; allowed are {', '.join(sorted({p for c in flat for p in c}))}")
    curves: dict[int, dict[str, SeriesData]] = {}
    ranges = []
    for run in runs:
        curves[run.id], span = _curves(session, run, points)
        ranges.append({"run_id": run.id, "reparameterization": map_names(forms_of_run(run))} | span)
    losses = [_final_loss(run, curves[run.id].get(TRAIN_LOSS)) for run in runs]
    keys = [tuple(_key(config.get(path)) for path in group_by) for config in flat] if group_by else []
    groups = [
        _group(dict(zip(group_by, key, strict=True)), [i for i, k in enumerate(keys) if k == key], runs, losses, ranges)
        for key in dict.fromkeys(keys)
    ]
    return Comparison(list(runs), _differences(flat), ranges, groups, curves)


def _curves(session: Session, run: Run, points: int) -> tuple[dict[str, SeriesData], dict[str, Any]]:
    layout = Layout(session, run.id)
    curves = {}
    if TRAIN_LOSS in layout.series:
        curves[TRAIN_LOSS] = read_series(session, run.id, TRAIN_LOSS, max_points=points, layout=layout)
    layers = [name for name in layout.series if name.endswith("/grad_over_weight")]
    ratios = [_envelope(read_series(session, run.id, name, max_points=points, layout=layout)) for name in layers]
    if ratios:
        curves[MAX_RATIO] = _largest(ratios)
    return curves, _range(ratios)


def _envelope(data: SeriesData) -> SeriesData:
    """Raw points as buckets of one, so that all stretches look alike."""
    if data.value is None:
        return data
    finite = np.isfinite(data.value)
    shown = np.where(finite, data.value, np.float32(np.nan))
    return replace(
        data,
        value=None,
        last_step=data.step,
        count=np.ones_like(data.step),
        min=shown,
        max=shown,
        last=data.value,
        nonfinite=(~finite).astype(np.int64),
    )


def _largest(layers: list[SeriesData]) -> SeriesData:
    """Per step the largest ratio over layers and eigenvalues (n, 1): finite maximum, non-finite values counted beside it.

    `last` is the largest last value as numpy.max sees it: NaN if one is NaN.
    """
    rows = min(len(layer.step) for layer in layers)  # the layers of a run are recorded together
    top, low, last, bad = (
        np.concatenate([_of(layer, part)[:rows] for layer in layers], axis=1) for part in ("max", "min", "last", "nonfinite")
    )
    return SeriesData(
        MAX_RATIO,
        "",
        None,
        step=layers[0].step[:rows],
        last_step=_of(layers[0], "last_step")[:rows],
        count=_of(layers[0], "count")[:rows],
        min=np.fmin.reduce(low, axis=1, keepdims=True),
        max=np.fmax.reduce(top, axis=1, keepdims=True),
        last=last.max(axis=1, keepdims=True),
        nonfinite=bad.sum(axis=1, keepdims=True),
    )


def _range(ratios: list[SeriesData]) -> dict[str, Any]:
    """Smallest and largest finite ratio, its quantiles, and finite / total values.

    Quantiles are those of the last value in each bucket: of every value while the run is short, else of an even sample.
    """
    low, high, sample = (_finite(ratios, part) for part in ("min", "max", "last"))
    q05, median, q95 = np.quantile(sample, [0.05, 0.5, 0.95]).tolist() if sample.size else (None, None, None)
    total = sum(int(_of(r, "count").sum()) * _of(r, "last").shape[1] for r in ratios)
    return {
        "min": float(low.min()) if low.size else None,
        "q05": q05,
        "median": median,
        "q95": q95,
        "max": float(high.max()) if high.size else None,
        "finite": total - sum(int(_of(r, "nonfinite").sum()) for r in ratios),
        "total": total,
    }


def _finite(ratios: list[SeriesData], part: str) -> np.ndarray:
    values = np.concatenate([_of(r, part).ravel() for r in ratios]) if ratios else np.empty(0)
    return values[np.isfinite(values)]


def _group(
    key: dict[str, Any], members: list[int], runs: Sequence[Run], losses: list[float | None], ranges: list[dict[str, Any]]
) -> dict[str, Any]:
    """One group: its runs, final losses of those that ended finite, ratio range over all of them."""
    finite = [loss for i in members if (loss := losses[i]) is not None and math.isfinite(loss) and runs[i].status != "diverged"]
    spread = {"mean": float(np.mean(finite)), "min": min(finite), "max": max(finite)} if finite else None
    spans = [ranges[i] for i in members]
    lows, highs = ([s[end] for s in spans if s[end] is not None] for end in ("min", "max"))
    return {
        "key": key,
        "runs": [runs[i].id for i in members],
        "finite": len(finite),
        "total": len(members),
        "final_loss": spread or {"mean": None, "min": None, "max": None},
        "grad_over_weight": {
            "min": min(lows) if lows else None,
            "max": max(highs) if highs else None,
            "finite": sum(s["finite"] for s in spans),
            "total": sum(s["total"] for s in spans),
        },
    }


def _final_loss(run: Run, curve: SeriesData | None) -> float | None:
    """The result's, or, while there is none, the newest recorded one."""
    stated = (run.result or {}).get("train_loss")
    if stated is not None:
        return float(stated)  # "NaN" and the infinities included
    if curve is None or not len(curve.step):
        return None
    last = curve.value if curve.value is not None else curve.last
    return None if last is None else float(last[-1, 0])


def _differences(flat: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Fields whose value is not the same in all configurations; names and tags are no configuration."""
    paths = dict.fromkeys(path for config in flat for path in config if path not in ("name", "tags"))
    rows = [{"field": path, "values": [config.get(path, ABSENT) for config in flat]} for path in paths]
    return [row for row in rows if any(value != row["values"][0] for value in row["values"])]


def _flatten(config: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _key(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _of(data: SeriesData, name: str) -> np.ndarray:
    values = getattr(data, name)
    assert isinstance(values, np.ndarray)  # an envelope has them all
    return values
