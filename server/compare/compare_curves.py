"""Curves of many runs: the loss and the largest ratio |grad| / |w|, as minimum and maximum per bucket of steps. Also the range
of the ratios, for each run and for each map.

A ratio |grad| / |w| is infinite or NaN if the weight is exactly 0. Such a ratio contains no information about stability, so
`at_zero` counts these ratios separately.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sqlalchemy.orm import Session

from server.database.models import Run
from server.series.block_cache import run_queries
from server.series.forms import map_names, run_forms_json
from server.series.layout import RecordedLayout
from server.series.plans import PointsPlan, Selection, StepRanges
from server.series.reading import SeriesData, batches, read_many, recorded_layouts
from stablessm_core.telemetry.series import TRAIN_LOSS, layer_group, layer_of

CURVE_POINTS = 400
MAX_RATIO = "max_grad_over_weight"
RATIO, WEIGHT = "grad_over_weight", "weight"
CURVES = (TRAIN_LOSS, MAX_RATIO)
MAX_LOOKED_AT = 2000  # maximum number of steps per layer whose weights are read to find out why a ratio is not finite


@dataclass(frozen=True)
class RunCurves:
    """The curves of a run, and the range of its ratios. `ratios` contains the last ratios in each bucket of steps, from all
    layers; quantiles over several runs are computed from these values."""

    run_id: int
    curves: dict[str, SeriesData]
    range: dict[str, Any]
    ratios: np.ndarray


def read_curves(session: Session, runs: Sequence[Run], points: int, wanted: Sequence[str] = CURVES) -> list[RunCurves]:
    """The curves of each run that `wanted` names. The range of a run's ratios is empty unless `wanted` contains MAX_RATIO."""
    name, kinds = TRAIN_LOSS if TRAIN_LOSS in wanted else "", (RATIO, WEIGHT) if MAX_RATIO in wanted else ()
    layouts = recorded_layouts(session, [run.id for run in runs], name=name, kinds=kinds)
    chosen = [
        Selection(layout, layout.find(name))
        for layout in layouts.values()
        for name in layout.series
        if not name.endswith(f"/{WEIGHT}") and _of_eigenvalues(name)
    ]
    read: dict[int, dict[str, SeriesData]] = {run.id: {} for run in runs}
    for selection, data in zip(chosen, read_many(session, chosen, points), strict=True):
        read[selection.run_id][data.name] = data if data.name == TRAIN_LOSS else envelope(data)
    zeros = _at_zero(session, layouts, read)
    return [_curves(run, read[run.id], zeros[run.id]) for run in runs]


def _curves(run: Run, read: dict[str, SeriesData], at_zero: int) -> RunCurves:
    ratios = [data for name, data in read.items() if name != TRAIN_LOSS]
    curves = {name: data for name, data in read.items() if name == TRAIN_LOSS}
    if ratios:
        curves[MAX_RATIO] = _largest(ratios)
    span = {"run_id": run.id, "reparameterization": map_names(run_forms_json(run))} | _range_json(ratios, at_zero)
    return RunCurves(run.id, curves, span, _finite(ratios, "last"))


def _of_eigenvalues(name: str) -> bool:
    """True if the series is a scalar or belongs to a layer's eigenvalues rather than to another watched weight of the layer."""
    group = name.rpartition("/")[0]
    layer = layer_of(group)
    return layer is None or group == layer_group(layer)


def ranges_json(read: Sequence[RunCurves]) -> list[dict[str, Any]]:
    """One range per map, over all runs with this map, in the order in which maps appear. Runs without ratios are skipped."""
    maps = dict.fromkeys(one.range["reparameterization"] for one in read if one.range["total"])
    return [_pooled_json(name, [one for one in read if one.range["reparameterization"] == name]) for name in maps]


def _pooled_json(name: str, read: Sequence[RunCurves]) -> dict[str, Any]:
    merged = merged_range_json(read)
    return {
        "reparameterization": name,
        "runs": sum(one.range["total"] > 0 for one in read),
        "min": merged["min"],
        **_quantiles([one.ratios for one in read]),
        "max": merged["max"],
        **{part: merged[part] for part in ("finite", "total")},
        "at_zero": sum(one.range["at_zero"] for one in read),
    }


def merged_range_json(read: Sequence[RunCurves]) -> dict[str, Any]:
    """The smallest and largest finite ratio over all these runs, the number of finite values, and the number of all values."""
    ranges = [one.range for one in read]
    return {
        "min": min((one["min"] for one in ranges if one["min"] is not None), default=None),
        "max": max((one["max"] for one in ranges if one["max"] is not None), default=None),
        "finite": sum(one["finite"] for one in ranges),
        "total": sum(one["total"] for one in ranges),
    }


def _quantiles(samples: Sequence[np.ndarray]) -> dict[str, float | None]:
    sample = np.concatenate([*samples, np.empty(0)])
    found = np.quantile(sample, [0.05, 0.5, 0.95]).tolist() if sample.size else (None, None, None)
    return dict(zip(("q05", "median", "q95"), found, strict=True))


def _at_zero(
    session: Session, layouts: Mapping[int, RecordedLayout], read: Mapping[int, Mapping[str, SeriesData]]
) -> dict[int, int]:
    """For each run, the number of ratios that are not finite because the weight is exactly 0. At most MAX_LOOKED_AT steps per
    layer are examined."""
    plans: list[tuple[PointsPlan, PointsPlan]] = []  # how to read the ratios and the weights of each layer
    sizes: list[int] = []
    for run_id, layout in layouts.items():
        for name, data in read[run_id].items():
            weight = layout.series.get(name.removesuffix(RATIO) + WEIGHT)
            if weight is None or not (steps := _not_finite(data)):
                continue
            ratio = layout.find(name)
            plans.append((PointsPlan(Selection(layout, ratio), steps), PointsPlan(Selection(layout, weight), steps)))
            sizes.append(MAX_LOOKED_AT * (weight.offset + weight.width))
    found = dict.fromkeys(layouts, 0)
    for batch in batches(sizes):
        points = run_queries(session, [plan for pair in plans[batch] for plan in pair])
        for (plan, _), ratios, weights in zip(plans[batch], points[::2], points[1::2], strict=True):
            found[plan.selection.run_id] += int((~np.isfinite(ratios.values) & (weights.values == 0)).sum())
    return found


def _not_finite(data: SeriesData) -> StepRanges:
    """The step ranges of the first buckets that contain a non-finite value; adjacent buckets are joined."""
    first, last, count = (statistic(data, part) for part in ("step", "last_step", "count"))
    bad = np.flatnonzero(statistic(data, "nonfinite").sum(axis=1))
    bad = bad[np.cumsum(count[bad]) <= MAX_LOOKED_AT]
    stretches = np.split(bad, np.flatnonzero(np.diff(bad) > 1) + 1)
    return [(int(first[rows[0]]), int(last[rows[-1]])) for rows in stretches if len(rows)]


def envelope(data: SeriesData) -> SeriesData:
    """Convert raw points to buckets of one point, so that every series has the same arrays."""
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
    """The largest finite ratio over layers and eigenvalues at each step, shape (n, 1), with the number of non-finite values.

    `last` is the largest last value over layers and eigenvalues, or NaN if any last value is NaN.
    """
    rows = min(len(layer.step) for layer in layers)  # the layers of a run are recorded together
    top, low, last, bad = (
        np.concatenate([statistic(layer, part)[:rows] for layer in layers], axis=1)
        for part in ("max", "min", "last", "nonfinite")
    )
    return SeriesData(
        MAX_RATIO,
        "",
        None,
        step=layers[0].step[:rows],
        last_step=statistic(layers[0], "last_step")[:rows],
        count=statistic(layers[0], "count")[:rows],
        min=np.fmin.reduce(low, axis=1, keepdims=True),
        max=np.fmax.reduce(top, axis=1, keepdims=True),
        last=last.max(axis=1, keepdims=True),
        nonfinite=bad.sum(axis=1, keepdims=True),
    )


def _range_json(ratios: list[SeriesData], at_zero: int) -> dict[str, Any]:
    """Smallest and largest finite ratio, quantiles, finite and total number of values, and `at_zero`.

    The quantiles are over the last value of each bucket. For a short run these are all values; for a long run they are an
    evenly spaced sample.
    """
    low, high = (_finite(ratios, part) for part in ("min", "max"))
    total = sum(int(statistic(r, "count").sum()) * statistic(r, "last").shape[1] for r in ratios)
    return {
        "min": float(low.min()) if low.size else None,
        **_quantiles([_finite(ratios, "last")]),
        "max": float(high.max()) if high.size else None,
        "finite": total - sum(int(statistic(r, "nonfinite").sum()) for r in ratios),
        "total": total,
        "at_zero": at_zero,
    }


def _finite(ratios: list[SeriesData], part: str) -> np.ndarray:
    values = np.concatenate([statistic(r, part).ravel() for r in ratios]) if ratios else np.empty(0)
    return values[np.isfinite(values)]


def statistic(data: SeriesData, name: str) -> np.ndarray:
    values = getattr(data, name)
    assert isinstance(values, np.ndarray)  # an envelope has an array for every name
    return values
