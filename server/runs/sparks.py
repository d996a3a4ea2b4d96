"""Small loss curves of many runs at once, for lists. A run without news is read once."""

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
from server.series.many import read_many, recorded
from server.series.reading import SeriesData
from stablessm_core.telemetry.series import TRAIN_LOSS

POINTS = 48
KEPT = 20_000  # curves of 48 numbers


class Sparks:
    """The curves of this server process, by run and newest event."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[int, int, int], dict[str, Any]] = OrderedDict()
        self._lock = Lock()

    def of(self, session: Session, run_ids: Sequence[int]) -> dict[int, dict[str, Any]]:
        """SparkAnswer of each run that has recorded a loss."""
        chosen = select(Run.id, Run.attempt, Run.seq).where(Run.id.in_(run_ids), Run.step > 0, NOT_IN_TRASH)
        states = [(row.id, row.attempt, row.seq) for row in session.execute(chosen)]
        with self._lock:
            known = {state: self._kept[state] for state in states if state in self._kept}
        new = [state for state in states if state not in known]
        for state, spark in zip(new, _sparks(session, [state[0] for state in new]), strict=True):
            known[state] = spark
        with self._lock:
            self._kept |= {state: known[state] for state in new}
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return {state[0]: known[state] for state in states if known[state]["last"]}


def _sparks(session: Session, run_ids: Sequence[int]) -> list[dict[str, Any]]:
    """In the order of the runs; empty where no loss is recorded."""
    chosen = [(layout, TRAIN_LOSS) for layout in recorded(session, run_ids, name=TRAIN_LOSS).values() if layout.series]
    read = dict(zip((layout.run_id for layout, _ in chosen), read_many(session, chosen, POINTS), strict=True))
    return [_spark(read[run_id]) if run_id in read else {"last": [], "lost": None} for run_id in run_ids]


def _spark(data: SeriesData) -> dict[str, Any]:
    last = data.value if data.value is not None else data.last
    assert last is not None
    bad = ~np.isfinite(last[:, 0]) if data.nonfinite is None else data.nonfinite[:, 0] > 0
    # as short as it can be drawn: 4 digits
    return {"last": [_short(x) for x in last[:, 0]], "lost": int(bad.argmax()) if bad.any() else None}


def _short(x: np.floating[Any]) -> float:
    return float(f"{x:.4g}") if math.isfinite(x) else float(x)
