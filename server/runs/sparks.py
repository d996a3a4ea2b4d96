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
from server.series.layout import Layout
from server.series.reading import read_series
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
        found = {}
        for key in session.execute(chosen).all():
            state = (key.id, key.attempt, key.seq)
            with self._lock:
                known = self._kept.get(state)
            found[key.id] = known or self._read(session, state)
        return {run: spark for run, spark in found.items() if spark["last"]}

    def _read(self, session: Session, state: tuple[int, int, int]) -> dict[str, Any]:
        spark = _spark(session, state[0])
        with self._lock:
            self._kept[state] = spark
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return spark


def _spark(session: Session, run_id: int) -> dict[str, Any]:
    layout = Layout(session, run_id)
    if TRAIN_LOSS not in layout.series:
        return {"last": [], "lost": None}
    data = read_series(session, run_id, TRAIN_LOSS, max_points=POINTS, layout=layout)
    last = data.value if data.value is not None else data.last
    assert last is not None
    bad = ~np.isfinite(last[:, 0]) if data.nonfinite is None else data.nonfinite[:, 0] > 0
    # as short as it can be drawn: 4 digits
    return {"last": [_short(x) for x in last[:, 0]], "lost": int(bad.argmax()) if bad.any() else None}


def _short(x: np.floating[Any]) -> float:
    return float(f"{x:.4g}") if math.isfinite(x) else float(x)
