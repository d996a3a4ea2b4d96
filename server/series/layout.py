"""Where each series of a run lives in the blocks of its group, and how the derived ones are computed from the recorded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import Row, Select, bindparam, select
from sqlalchemy.orm import Session

from server.database.models import NOT_IN_TRASH, Run, SeriesRow
from server.series.forms import MISSING, form_data, readable_form
from stablessm_core.forms import Form

_RUN, _SERIES = Run.__table__, SeriesRow.__table__
_LAYOUT: Select[Any] = (
    select(
        _RUN.c.seq, _RUN.c.step, _SERIES.c.name, _SERIES.c.group_name.label("group"), _SERIES.c.column_offset.label("offset"),
        _SERIES.c.width, _SERIES.c.unit, _SERIES.c.derived, _SERIES.c.form, MISSING.label("missing"),
    )
    .select_from(_RUN.outerjoin(_SERIES, _SERIES.c.run_id == _RUN.c.id))
    .where(_RUN.c.id == bindparam("run"), NOT_IN_TRASH)
    .order_by(_SERIES.c.group_name, _SERIES.c.column_offset)
)  # fmt: skip


@dataclass(frozen=True)
class Points:
    """New points of one series: step int64 (n,), value float32 or float64 (n, width)."""

    name: str
    step: np.ndarray
    value: np.ndarray


class Layout:
    """Where each series of one run lives in its group's blocks, and how the derived ones are computed.

    `seq` and `step` are those of the run when this was read. Holds nothing of the session: it may be kept while the catalogue
    does not grow. A derived series whose form this version does not know is left out.
    """

    def __init__(self, session: Session, run_id: int) -> None:
        rows = session.execute(_LAYOUT, {"run": run_id}).all()
        if not rows:
            raise LookupError(f"there is no run {run_id}")
        self.run_id, self.seq, self.step = run_id, int(rows[0].seq), int(rows[0].step)
        layers = {row.group: form_data(row.form, row.missing) for row in rows if row.derived}
        self.forms: dict[str, Form] = {group: form for group, data in layers.items() if (form := readable_form(data))}
        known = (row for row in rows if row.name is not None and (not row.derived or row.group in self.forms))
        self.series: dict[str, Row[Any]] = {row.name: row for row in known}

    def find(self, name: str) -> Row[Any]:
        """Raises LookupError."""
        if name not in self.series:
            raise LookupError(f"run {self.run_id} has no series {name!r}")
        return self.series[name]

    def span(self, row: Row[Any]) -> slice:
        """Columns of the group's raw blocks that the series is made from."""
        parts = [row] if not row.derived else [self.series[f"{row.group}/{k}"] for k in self._inputs(row)]
        return slice(min(p.offset for p in parts), max(p.offset + p.width for p in parts))

    def raw(self, row: Row[Any], block: np.ndarray, base: int = 0, eigenvalues: np.ndarray | slice = slice(None)) -> np.ndarray:
        """(width, count) of one series from a raw block of its group, whose first row is column `base`; derived: float64."""
        if not row.derived:
            return block[row.offset - base : row.offset - base + row.width][eigenvalues]
        sources = {kind: self.series[f"{row.group}/{kind}"] for kind in self._inputs(row)}
        parts = {kind: self.raw(source, block, base, eigenvalues).astype(np.float64) for kind, source in sources.items()}
        return self.forms[row.group].derive(row.name.rpartition("/")[2], parts)

    def _inputs(self, row: Row[Any]) -> tuple[str, ...]:
        return self.forms[row.group].inputs

    def points(self, group: str, first_step: int, stride: int, values: np.ndarray) -> list[Points]:
        """All series of a raw block (columns, count)."""
        steps = first_step + stride * np.arange(values.shape[1], dtype=np.int64)
        rows = [row for row in self.series.values() if row.group == group]
        return [Points(row.name, steps, np.ascontiguousarray(self.raw(row, values).T)) for row in rows]
