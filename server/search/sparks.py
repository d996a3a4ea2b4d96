"""Small loss curves of many runs at once, for lists. A run is read again only after new events."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import Any

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from server.database.models import NOT_IN_TRASH, Run
from server.series.plans import Selection
from server.series.reading import SeriesData, read_many, recorded_layouts
from stablessm_core.telemetry.series import TRAIN_LOSS

POINTS = 48
CACHED = 20_000  # maximum number of cached curves, each of 48 numbers


class SparkCache:
    """A cache of the curves, keyed by run, attempt and newest event. Each server process has one cache."""

    def __init__(self) -> None:
        self._cached: OrderedDict[tuple[int, int, int], dict[str, Any]] = OrderedDict()
        self._lock = Lock()

    def get(self, session: Session, run_ids: Sequence[int]) -> dict[int, dict[str, Any]]:
        """The SparkAnswer of each of these runs that has recorded a loss."""
        chosen = select(Run.id, Run.attempt, Run.seq).where(Run.id.in_(run_ids), Run.step > 0, NOT_IN_TRASH)
        states = [(row.id, row.attempt, row.seq) for row in session.execute(chosen)]
        with self._lock:
            known = {state: self._cached[state] for state in states if state in self._cached}
        new = [state for state in states if state not in known]
        for state, spark in zip(new, _sparks_json(session, [state[0] for state in new]), strict=True):
            known[state] = spark
        with self._lock:
            self._cached |= {state: known[state] for state in new}
            while len(self._cached) > CACHED:
                self._cached.popitem(last=False)
        return {state[0]: known[state] for state in states if known[state]["last"]}


def _sparks_json(session: Session, run_ids: Sequence[int]) -> list[dict[str, Any]]:
    """The curves in the order of the runs; empty for a run without a recorded loss."""
    layouts = recorded_layouts(session, run_ids, name=TRAIN_LOSS).values()
    losses = [Selection(layout, layout.find(TRAIN_LOSS)) for layout in layouts if layout.series]
    read = dict(zip((loss.run_id for loss in losses), read_many(session, losses, POINTS), strict=True))
    return [_spark_json(read[run_id]) if run_id in read else {"last": [], "lost": None} for run_id in run_ids]


def _spark_json(data: SeriesData) -> dict[str, Any]:
    last = data.value if data.value is not None else data.last
    assert last is not None
    bad = ~np.isfinite(last[:, 0]) if data.nonfinite is None else data.nonfinite[:, 0] > 0
    # four digits suffice for a curve of this size
    return {"last": [_short(x) for x in last[:, 0]], "lost": int(bad.argmax()) if bad.any() else None}


def _short(x: np.floating[Any]) -> float:
    return float(f"{x:.4g}") if math.isfinite(x) else float(x)
