"""Curves of many runs: losses and largest gradient-over-weight ratios as envelopes, and ranges of the ratios by run and by map.

A ratio |grad| / |w| is infinite (or NaN) where a weight is exactly 0. That says nothing about stability, so such values are
counted apart: `at_zero`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sqlalchemy.orm import Session

from server.database.models import Run
from server.series.forms import forms_of_run, map_names
from server.series.layout import Recorded
from server.series.many import read_many, recorded, together
from server.series.reading import SeriesData
from server.series.zoom import Asking, Gaps, Reader
from stablessm_core.telemetry.series import TRAIN_LOSS, layer_group, layer_of

CURVE_POINTS = 400
MAX_RATIO = "max_grad_over_weight"
RATIO, WEIGHT = "grad_over_weight", "weight"
CURVES = (TRAIN_LOSS, MAX_RATIO)
MAX_LOOKED_AT = 2000  # steps whose weights are read to tell why a ratio is not finite


@dataclass(frozen=True)
class RunCurves:
    """`ratios` holds the last value of each bucket of the run's layers, which quantiles over several runs are taken from."""

    run_id: int
    curves: dict[str, SeriesData]
    range: dict[str, Any]
    ratios: np.ndarray


def read_curves(session: Session, runs: Sequence[Run], points: int, wanted: Sequence[str] = CURVES) -> list[RunCurves]:
    """Of each run the curves of `wanted` and, with the ratios, their range."""
    name, kinds = TRAIN_LOSS if TRAIN_LOSS in wanted else "", (RATIO, WEIGHT) if MAX_RATIO in wanted else ()
    layouts = recorded(session, [run.id for run in runs], name=name, kinds=kinds)
    chosen = [
        (layout, name)
        for layout in layouts.values()
        for name in layout.series
        if not name.endswith(f"/{WEIGHT}") and _of_eigenvalues(name)
    ]
    read: dict[int, dict[str, SeriesData]] = {run.id: {} for run in runs}
    for (layout, name), data in zip(chosen, read_many(session, chosen, points), strict=True):
        read[layout.run_id][name] = data if name == TRAIN_LOSS else _envelope(data)
    zeros = _at_zero(session, layouts, read)
    return [_curves(run, read[run.id], zeros[run.id]) for run in runs]


def _curves(run: Run, read: dict[str, SeriesData], at_zero: int) -> RunCurves:
    ratios = [data for name, data in read.items() if name != TRAIN_LOSS]
    curves = {name: data for name, data in read.items() if name == TRAIN_LOSS}
    if ratios:
        curves[MAX_RATIO] = _largest(ratios)
    span = {"run_id": run.id, "reparameterization": map_names(forms_of_run(run))} | _range(ratios, at_zero)
    return RunCurves(run.id, curves, span, _finite(ratios, "last"))


def _of_eigenvalues(name: str) -> bool:
    """Whether it is a scalar, or a series of a layer's eigenvalues and not of another weight that is watched in it."""
    group = name.rpartition("/")[0]
    layer = layer_of(group)
    return layer is None or group == layer_group(layer)


def ranges(read: Sequence[RunCurves]) -> list[dict[str, Any]]:
    """The ranges of the runs of each map as one, in the order in which maps come up; runs without ratios have no part."""
    maps = dict.fromkeys(one.range["reparameterization"] for one in read if one.range["total"])
    return [_pooled(name, [one for one in read if one.range["reparameterization"] == name]) for name in maps]


def _pooled(name: str, read: Sequence[RunCurves]) -> dict[str, Any]:
    spans = [one.range for one in read if one.range["total"]]
    lows, highs = ([s[end] for s in spans if s[end] is not None] for end in ("min", "max"))
    counts = {part: sum(s[part] for s in spans) for part in ("finite", "total", "at_zero")}
    low, high = min(lows, default=None), max(highs, default=None)
    return {
        "reparameterization": name,
        "runs": len(spans),
        "min": low,
        **_quantiles([o.ratios for o in read]),
        "max": high,
        **counts,
    }


def _quantiles(samples: Sequence[np.ndarray]) -> dict[str, float | None]:
    sample = np.concatenate([*samples, np.empty(0)])
    found = np.quantile(sample, [0.05, 0.5, 0.95]).tolist() if sample.size else (None, None, None)
    return dict(zip(("q05", "median", "q95"), found, strict=True))


def _at_zero(session: Session, layouts: Mapping[int, Recorded], read: Mapping[int, Mapping[str, SeriesData]]) -> dict[int, int]:
    """How many of each run's ratios are not finite because their weight is exactly 0, in the first MAX_LOOKED_AT such steps
    of each layer."""
    runs: list[int] = []
    askings: list[Asking[int]] = []
    sizes: list[int] = []
    for run_id, layout in layouts.items():
        for name, data in read[run_id].items():
            weight = layout.series.get(name.removesuffix(RATIO) + WEIGHT)
            if weight is None or not (gaps := _not_finite(data)):
                continue
            ratio, of_weight = (Reader(session, layout, place, None) for place in (layout.find(name), weight))
            runs.append(run_id)
            askings.append(_zeros(ratio, of_weight, gaps))
            sizes.append(MAX_LOOKED_AT * (weight.offset + weight.width))
    found = dict.fromkeys(layouts, 0)
    for run_id, count in zip(runs, together(session, askings, sizes), strict=True):
        found[run_id] += count
    return found


def _not_finite(data: SeriesData) -> Gaps:
    """The first buckets with a value that is not finite, neighbours joined."""
    first, last, count = (_of(data, part) for part in ("step", "last_step", "count"))
    bad = np.flatnonzero(_of(data, "nonfinite").sum(axis=1))
    bad = bad[np.cumsum(count[bad]) <= MAX_LOOKED_AT]
    stretches = np.split(bad, np.flatnonzero(np.diff(bad) > 1) + 1)
    return [(int(first[rows[0]]), int(last[rows[-1]])) for rows in stretches if len(rows)]


def _zeros(ratio: Reader, weight: Reader, gaps: Gaps) -> Asking[int]:
    _, ratios = yield from ratio.asking_raw(gaps)
    _, weights = yield from weight.asking_raw(gaps)
    return int((~np.isfinite(ratios) & (weights == 0)).sum())


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


def _range(ratios: list[SeriesData], at_zero: int) -> dict[str, Any]:
    """Smallest and largest finite ratio, its quantiles, finite / total values, and how many are not finite as a weight is 0.

    Quantiles are those of the last value in each bucket: of every value while the run is short, else of an even sample.
    """
    low, high = (_finite(ratios, part) for part in ("min", "max"))
    total = sum(int(_of(r, "count").sum()) * _of(r, "last").shape[1] for r in ratios)
    return {
        "min": float(low.min()) if low.size else None,
        **_quantiles([_finite(ratios, "last")]),
        "max": float(high.max()) if high.size else None,
        "finite": total - sum(int(_of(r, "nonfinite").sum()) for r in ratios),
        "total": total,
        "at_zero": at_zero,
    }


def _finite(ratios: list[SeriesData], part: str) -> np.ndarray:
    values = np.concatenate([_of(r, part).ravel() for r in ratios]) if ratios else np.empty(0)
    return values[np.isfinite(values)]


def _of(data: SeriesData, name: str) -> np.ndarray:
    values = getattr(data, name)
    assert isinstance(values, np.ndarray)  # an envelope has them all
    return values
