"""Where each series of a run lives in the blocks of its group, and how the derived ones are computed from the recorded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from server.models import Run, SeriesRow
from stablessm_core import formulas


@dataclass(frozen=True)
class Points:
    """New points of one series: step int64 (n,), value float32 or float64 (n, width)."""

    name: str
    step: np.ndarray
    value: np.ndarray


class Layout:
    """Where each series of one run lives in its group's blocks, and how the derived ones are computed.

    Holds nothing of the session: it may be kept while the catalogue does not grow.
    """

    def __init__(self, session: Session, run_id: int) -> None:
        run = session.get(Run, run_id)  # no query where the caller has it already
        if run is None:
            raise LookupError(f"there is no run {run_id}")
        self.run_id = run_id
        self.map: dict[str, Any] = run.config["model"]["reparameterization"]
        rows = session.scalars(select(SeriesRow).where(SeriesRow.run_id == run_id).order_by(SeriesRow.group, SeriesRow.offset))
        self.series = {row.name: row for row in rows}

    def find(self, name: str) -> SeriesRow:
        """Raises LookupError."""
        if name not in self.series:
            raise LookupError(f"run {self.run_id} has no series {name!r}")
        return self.series[name]

    def span(self, row: SeriesRow) -> slice:
        """Columns of the group's raw blocks that the series is made from."""
        parts = [row] if not row.derived else [self.series[f"{row.group}/{k}"] for k in self._inputs(row)]
        return slice(min(p.offset for p in parts), max(p.offset + p.width for p in parts))

    def raw(self, row: SeriesRow, block: np.ndarray, base: int = 0, eigenvalues: np.ndarray | slice = slice(None)) -> np.ndarray:
        """(width, count) of one series from a raw block of its group, whose first row is column `base`; derived: float64."""
        if not row.derived:
            return block[row.offset - base : row.offset - base + row.width][eigenvalues]
        sources = {kind: self.series[f"{row.group}/{kind}"] for kind in self._inputs(row)}
        parts = {kind: self.raw(source, block, base, eigenvalues).astype(np.float64) for kind, source in sources.items()}
        form = {"name": self.map["name"], "time": self.map["time"], "a": self.map["a"], "b": self.map["b"]}
        formula = formulas.lambda_bar if row.name.endswith("/eigenvalue") else formulas.boundary_distance
        with np.errstate(all="ignore"):  # non-finite weights are data here
            return np.asarray(formula(w=parts["weight"], xp=np, dt=parts.get("dt"), **form))

    def _inputs(self, row: SeriesRow) -> list[str]:
        return [kind for kind in ("weight", "dt") if f"{row.group}/{kind}" in self.series]

    def points(self, group: str, first_step: int, stride: int, values: np.ndarray) -> list[Points]:
        """All series of a raw block (columns, count)."""
        steps = first_step + stride * np.arange(values.shape[1], dtype=np.int64)
        rows = [row for row in self.series.values() if row.group == group]
        return [Points(row.name, steps, np.ascontiguousarray(self.raw(row, values).T)) for row in rows]
