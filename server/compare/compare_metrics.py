"""The metrics that a comparison can show: the loss, the largest ratio |grad| / |w|, and every series that all its runs have.

A series with a value per eigenvalue is reduced to its most extreme value at each step: the smallest distance to the boundary,
and the largest value of every other series.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from server.compare.compare_curves import MAX_RATIO, envelope, statistic
from server.database.models import Run, SeriesRow
from server.series.layout import Layout
from server.series.plans import Selection
from server.series.reading import SeriesData, read_many, recorded_layouts
from stablessm_core.telemetry.series import TRAIN_LOSS, larger_is_better

SMALLEST = "boundary_distance"  # the smallest value of these series is the dangerous one


def metrics_of(session: Session, runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Name, label and better direction of each metric that all runs have, the training loss first."""
    row = SeriesRow.__table__.c
    of_all = select(row.name, func.max(row.width)).where(row.run_id.in_([run.id for run in runs]))
    named = of_all.group_by(row.name).having(func.count() == len(runs)).order_by(row.name)
    known = {name: width for name, width in session.execute(named) if not name.endswith("_quantiles")}
    found = [{"name": TRAIN_LOSS, "label": TRAIN_LOSS, "larger_is_better": False}]
    for name in sorted(known.keys() - {TRAIN_LOSS}, key=lambda name: (name.startswith("ssm/"), name)):
        of = "" if known[name] == 1 else f" ({_kind(name)} over the eigenvalues)"
        found.append({"name": name, "label": name + of, "larger_is_better": larger_is_better(name)})
    return found


def read_metric(session: Session, runs: Sequence[Run], points: int, name: str) -> dict[int, SeriesData]:
    """The metric of each run, with one value per step. Raises ValueError, with the allowed names, if a run does not have it."""
    recorded = recorded_layouts(session, [run.id for run in runs], name=name)
    # a derived series needs the whole layout of its run
    layouts = [layout if layout.series else Layout(session, run_id) for run_id, layout in recorded.items()]
    if not all(name in layout.series for layout in layouts):
        allowed = ", ".join([one["name"] for one in metrics_of(session, runs)] + [MAX_RATIO])
        raise ValueError(f"not every run has the series {name[:80]!r}; allowed: {allowed}")
    chosen = [Selection(layout, layout.find(name)) for layout in layouts]
    read = read_many(session, chosen, points)
    return {one.run_id: _reduced(data) for one, data in zip(chosen, read, strict=True)}


def _kind(name: str) -> str:
    return "smallest" if SMALLEST in name else "largest"


def _reduced(data: SeriesData) -> SeriesData:
    buckets = envelope(data)
    if statistic(buckets, "last").shape[1] == 1:
        return buckets
    extreme = np.fmin if _kind(data.name) == "smallest" else np.fmax
    low, high = (extreme.reduce(statistic(buckets, part), axis=1, keepdims=True) for part in ("min", "max"))
    end = low if extreme is np.fmin else high
    return replace(
        buckets, eigenvalues=None, min=end, max=end, last=extreme.reduce(statistic(buckets, "last"), axis=1, keepdims=True),
        nonfinite=statistic(buckets, "nonfinite").sum(axis=1, keepdims=True),
    )  # fmt: skip
