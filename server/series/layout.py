"""The positions of a run's series in the blocks of their groups, and the computation of derived series from recorded series."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import Select, bindparam, select
from sqlalchemy.orm import Session

from server.database.models import NOT_IN_TRASH, Run, SeriesRow
from server.series.forms import configured_recording, readable_form
from stablessm_core.telemetry.boundary import overflow_distance
from stablessm_core.telemetry.forms import Form, spread
from stablessm_core.telemetry.metrics import is_metric_group
from stablessm_core.telemetry.scattered import present
from stablessm_core.telemetry.series import (
    DERIVED_GROUPS,
    LAYER_GROUPS,
    MEASURED_GROUPS,
    OVERFLOW_BUDGET,
    RELATIVE_STEP,
    SeriesSpec,
    following_catalogue,
    layer_of,
    source_group,
)
from stablessm_core.telemetry.stability import overflow_budget, update_step

_RUN, _SERIES = Run.__table__, SeriesRow.__table__
_LAYOUT: Select[Any] = (
    select(
        _RUN.c.seq, _RUN.c.step, _SERIES.c.name, _SERIES.c.group_name.label("group"), _SERIES.c.column_offset.label("offset"),
        _SERIES.c.width, _SERIES.c.unit, _SERIES.c.derived, _SERIES.c.form,
    )
    .select_from(_RUN.outerjoin(_SERIES, _SERIES.c.run_id == _RUN.c.id))
    .where(_RUN.c.id == bindparam("run"), NOT_IN_TRASH)
    .order_by(_SERIES.c.group_name, _SERIES.c.column_offset)
)  # fmt: skip
_SMALLEST = "boundary_distance_smallest"  # a series that only wide layers record


@dataclass(frozen=True)
class Points:
    """New points of one series: step int64 (n,), value float32 or float64 (n, width)."""

    name: str
    step: np.ndarray
    value: np.ndarray


@dataclass(frozen=True)
class SeriesColumns:
    """The position of one series: `width` columns of its group's blocks, starting at `offset`. A derived series is stored only
    in coarse blocks."""

    name: str
    group: str
    offset: int
    width: int
    unit: str
    derived: bool
    form: dict[str, Any] | None = None  # form of its layer, as plain data

    @property
    def kind(self) -> str:
        """The last part of the name: "weight", "eigenvalue", ..."""
        return self.name.rpartition("/")[2]

    @property
    def source(self) -> str:
        """The group whose raw blocks contain the data of the series."""
        return source_group(self.group)

    @property
    def scattered(self) -> bool:
        """True for a free metric, whose blocks list the step of each point."""
        return is_metric_group(self.group)

    @property
    def steps_ahead(self) -> int:
        """The number of following steps that a value needs: 1 for a relative step, else 0."""
        return 1 if self.derived and self.kind == RELATIVE_STEP else 0


class RecordedLayout:
    """The positions of one run's recorded series in the blocks of their groups. `Layout` adds the derived series."""

    def __init__(self, run_id: int, series: Mapping[str, SeriesColumns]) -> None:
        self.run_id, self.series = run_id, dict(series)

    def find(self, name: str) -> SeriesColumns:
        """The series with this name. Raises LookupError."""
        if name not in self.series:
            raise LookupError(f"run {self.run_id} has no series {name!r}")
        return self.series[name]

    def span(self, row: SeriesColumns) -> slice:
        """The columns of the group's raw blocks from which the series is computed."""
        return slice(row.offset, row.offset + row.width)

    def raw(
        self, row: SeriesColumns, block: np.ndarray, base: int = 0, eigenvalues: np.ndarray | slice = slice(None)
    ) -> np.ndarray:
        """The values (width, count) of one series from a raw block of its group; the first row of `block` is column `base`."""
        return block[row.offset - base : row.offset - base + row.width][eigenvalues]


class Layout(RecordedLayout):
    """The positions of one run's series in the blocks of their groups, including derived series and their computation.

    `seq` and `step` are the run's sequence number and step when the layout was read. The object keeps no reference to the
    session, so it can be reused until series are added to the run. A derived series is left out if this version does not
    support its form. newest: maps each group of a layer to the last step that a live stream sent, and to this step's recorded
    values.
    """

    def __init__(self, session: Session, run_id: int) -> None:
        rows = session.execute(_LAYOUT, {"run": run_id}).all()
        if not rows:
            raise LookupError(f"there is no run {run_id}")
        self.seq, self.step = int(rows[0].seq), int(rows[0].step)
        self.newest: dict[str, tuple[int, np.ndarray]] = {}
        layers = {row.group: row.form for row in rows if row.name is not None}
        places = [
            SeriesColumns(row.name, row.group, row.offset, row.width, row.unit, row.derived, layers[row.group])
            for row in rows
            if row.name is not None
        ]
        for item in missing_derived_series(session, run_id, [(p.name, p.group, p.width) for p in places], layers):
            offset = sum(p.width for p in places if p.group == item.group)
            places.append(SeriesColumns(item.name, item.group, offset, item.width, item.unit, derived=True, form=item.form))
            layers[item.group] = item.form
        derived = {place.group for place in places if place.derived}
        self.forms: dict[str, Form] = {group: form for group in sorted(derived) if (form := readable_form(layers[group]))}
        super().__init__(run_id, {p.name: p for p in places if not p.derived or p.group in self.forms})

    def span(self, row: SeriesColumns) -> slice:
        """The columns of the group's raw blocks from which the series is computed."""
        parts = [row] if not row.derived else self._sources(row)
        return slice(min(p.offset for p in parts), max(p.offset + p.width for p in parts))

    def raw(
        self, row: SeriesColumns, block: np.ndarray, base: int = 0, eigenvalues: np.ndarray | slice = slice(None)
    ) -> np.ndarray:
        """The values (width, count) of one series from a raw block of its group; the first row of `block` is column `base`.

        Derived series are float64. A series that needs the next step has one point fewer than the block, and the block must
        contain consecutive steps.
        """
        if not row.derived:
            return super().raw(row, block, base, eigenvalues)
        form, every = self.forms[row.group], row.kind == OVERFLOW_BUDGET  # an overflow budget depends on all eigenvalues
        parts = {
            source.kind: self._spread(row, source, block, base)[slice(None) if every else eigenvalues].astype(np.float64)
            for source in self._sources(row)
        }
        if row.kind == OVERFLOW_BUDGET:
            nearest = parts[_SMALLEST][:1] if _SMALLEST in parts else overflow_distance(form, parts).min(0, keepdims=True)
            return np.asarray(overflow_budget(form.length or 0, nearest))[eigenvalues]
        if row.kind == RELATIVE_STEP:
            return np.asarray(update_step(form, {kind: values.T for kind, values in parts.items()})).T
        return form.derive(row.kind, parts)

    def _spread(self, row: SeriesColumns, source: SeriesColumns, block: np.ndarray, base: int) -> np.ndarray:
        """A source of a derived series, shape (eigenvalues, count). A step size or gate that several eigenvalues share is
        repeated for each of them."""
        values, weight = super().raw(source, block, base), self.series.get(f"{row.source}/weight")
        return values if weight is None or weight.width == source.width else spread({"": values}, weight.width, axis=0)[""]

    def _sources(self, row: SeriesColumns) -> list[SeriesColumns]:
        smallest = self.series.get(f"{row.source}/{_SMALLEST}")
        if smallest is not None:
            return [smallest]
        return [self.series[f"{row.source}/{kind}"] for kind in self.forms[row.group].inputs]

    def follows(self, group: str) -> bool:
        """True if a series of the group is computed from two consecutive steps."""
        return any(row.source == group and row.steps_ahead for row in self.series.values())

    def logged_points(self, group: str, steps: np.ndarray, values: np.ndarray) -> list[Points]:
        """The points of the free metrics of a group in ascending steps (n,), with values (columns, n)."""
        found = []
        for row in (row for row in self.series.values() if row.group == group):
            some = present(values[row.offset])
            if some.any():
                found.append(Points(row.name, steps[some], np.ascontiguousarray(values[row.offset, some][:, None])))
        return found

    def points(
        self, group: str, first_step: int, stride: int, values: np.ndarray, before: np.ndarray | None = None
    ) -> list[Points]:
        """The points of all series in a raw block (columns, count).

        before: the recorded column of step first_step - 1, or None. If it is given, a series that needs the next step starts at
        step first_step - 1.
        """
        steps = first_step + stride * np.arange(values.shape[1], dtype=np.int64)
        found = []
        for row in (row for row in self.series.values() if row.source == group):
            if not row.steps_ahead:
                found.append(Points(row.name, steps, np.ascontiguousarray(self.raw(row, values).T)))
                continue
            # the points of a strided block are not consecutive steps
            whole = values if stride == 1 or values.shape[1] == 1 else values[:, :1]
            first = first_step
            if before is not None:
                whole, first = np.concatenate([before[:, None], whole], axis=1), first_step - 1
            if whole.shape[1] > 1:
                at = first + np.arange(whole.shape[1] - 1, dtype=np.int64)
                found.append(Points(row.name, at, np.ascontiguousarray(self.raw(row, whole).T)))
        return found


def missing_derived_series(
    session: Session, run_id: int, stored: Iterable[tuple[str, str, int]], forms: Mapping[str, Mapping[str, Any] | None]
) -> list[SeriesSpec]:
    """Derived series that are missing in a catalogue written by an older version. They are computed from recorded series.

    stored: (name, group, width) of each series in the catalogue. forms: the form of each group.
    """
    known = {name: (group, width) for name, group, width in stored}
    groups = {group for group, _ in known.values()}
    recorded = (
        g for g in sorted(groups) if g.startswith(LAYER_GROUPS) and g == source_group(g) and not g.endswith(MEASURED_GROUPS)
    )
    lacking = [g for g in recorded if g + DERIVED_GROUPS not in groups]
    if not lacking:
        return []
    length, every = configured_recording(session, run_id)
    found: list[SeriesSpec] = []
    for group in lacking:
        form, id_ = readable_form(forms.get(group)), group.removeprefix(LAYER_GROUPS)
        _, width = known.get(f"{group}/weight", ("", 0))
        if form is None or layer_of(group) is None or (width == 0 and f"{group}/{_SMALLEST}" not in known):
            continue
        found += following_catalogue(id_, width, form, length=length, every_eigenvalue=width > 0 and every == 1)
    return found
