"""The newest value of each scalar of a run, `runs.last_values`, by which lists filter and sort.

The column holds {group: [newest value of each column]} for the groups of scalars and of free metrics, so that a flush can update
it without knowing the names of its series. A non-finite value is stored as "NaN", "Infinity" or "-Infinity", and a metric without
a value as null.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sqlalchemy import ColumnElement, Float, Text, case, cast, func, literal, null, select, type_coerce, update
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session

from server.database.connection import Database
from server.database.models import BlockRow, Run, SeriesRow
from server.database.payloads import DamagedPayload, stored_numbers, stored_places
from stablessm_core.telemetry.blocks import PackedBlock
from stablessm_core.telemetry.nonfinite import INFINITY, MINUS_INFINITY, NAN, NONFINITE, spelling
from stablessm_core.telemetry.scattered import present
from stablessm_core.telemetry.series import LAYER_GROUPS
from stablessm_core.telemetry.statuses import FINAL

LastValues = dict[str, list[Any]]
AT_ONCE = 200  # runs of an older version whose values are read in one round of housekeeping
_SERIES_TABLE = SeriesRow.__table__
_RUN, _SERIES = Run.__table__.c, _SERIES_TABLE.c


def newest_values(blocks: Sequence[PackedBlock]) -> LastValues:
    """The last column of the newest raw block of each group that holds scalars."""
    found: dict[str, PackedBlock] = {}
    for block in blocks:
        if block.level == 0 and not block.group.startswith(LAYER_GROUPS):
            known = found.get(block.group)
            if known is None or block.last_step >= known.last_step:
                found[block.group] = block
    return {group: [_json_number(x) for x in block.values[:, -1]] for group, block in found.items()}


def with_new_values(text: ColumnElement[str], dialect: str) -> Any:
    """The SQL expression of the column `last_values` with these groups replaced, which are given as JSON text."""
    if dialect == "postgresql":
        return func.coalesce(Run.last_values, cast(literal("{}", Text), JSONB)).op("||")(cast(text, JSONB))
    return func.json_patch(func.coalesce(type_coerce(Run.last_values, Text), literal("{}", Text)), text)


def with_logged_values(known: Mapping[str, list[Any]], logged: Mapping[str, np.ndarray]) -> LastValues:
    """The newest values after these values (columns, points) of free metrics were logged."""
    found = dict(known)
    for group, values in logged.items():
        newest = found.get(group, [])
        found[group] = [*newest, *[None] * (len(values) - len(newest))]
        _fill(found[group], values, replace=True)
    return found


def newest_value(name: str, dialect: str) -> ColumnElement[Any]:
    """SQL for a run's newest value of the scalar with this name, as text: a number, "NaN", "Infinity" or "-Infinity"; NULL if the
    run has no such value."""
    found = select(_text_of(dialect)).where(
        _SERIES.run_id == _RUN.id, _SERIES.name == name, _SERIES.width == 1, _SERIES.derived.is_(False)
    )
    return found.correlate(Run.__table__).scalar_subquery()


def newest_number(text: ColumnElement[Any], dialect: str) -> ColumnElement[Any]:
    """SQL for the number in a `newest_value`; NULL if it is NaN."""
    if dialect == "postgresql":
        return cast(func.nullif(text, NAN), Float(53))
    spelled = ((text == NAN, null()), *((text == word, literal(float(word), Float(53))) for word in (INFINITY, MINUS_INFINITY)))
    return case(*spelled, else_=cast(text, Float(53)))


def read_last_values(session: Session, run_ids: Sequence[int], names: Sequence[str] | None) -> dict[int, dict[str, Any]]:
    """The newest value of each of these scalars (None: of all scalars) for each run, by name; non-finite values as words."""
    if not run_ids or (names is not None and not names):
        return {}
    dialect = session.get_bind().dialect.name
    known = select(_RUN.id, _SERIES.name, _text_of(dialect).label("text")).join(_SERIES_TABLE, _SERIES.run_id == _RUN.id)
    known = known.where(_RUN.id.in_(run_ids), _RUN.last_values.is_not(None), _SERIES.width == 1, _SERIES.derived.is_(False))
    if names is not None:
        known = known.where(_SERIES.name.in_(names))
    found: dict[int, dict[str, Any]] = {}
    for row in session.execute(known.order_by(_RUN.id, _SERIES.name)):
        if row.text is not None:
            found.setdefault(row.id, {})[row.name] = row.text if row.text in NONFINITE else float(row.text)
    return found


def _text_of(dialect: str) -> ColumnElement[Any]:
    """SQL for the value of the joined series in the joined run, as text."""
    column = cast(_SERIES.column_offset, Text)
    if dialect == "postgresql":
        return func.jsonb_extract_path_text(_RUN.last_values, _SERIES.group_name, column)
    path = literal('$."', Text) + _SERIES.group_name + literal('"[', Text) + column + literal("]", Text)
    found = cast(func.json_extract(_RUN.last_values, path), Text)
    return case((_SERIES.group_name.contains('"'), null()), else_=found)  # an old group with a quote would make the path invalid


def refresh_last_values(session: Session, run_id: int) -> None:
    """Read the newest values from the stored blocks again, after steps were deleted. The caller has locked the run's row."""
    groups = select(BlockRow.group_name).where(BlockRow.run_id == run_id, BlockRow.level == 0).distinct()
    wanted = groups.where(BlockRow.group_name.not_like(f"{LAYER_GROUPS}%"))
    found = stored_values(session, run_id, session.scalars(wanted).all())
    statement = update(Run).where(Run.id == run_id).values(last_values=found)
    session.execute(statement.execution_options(synchronize_session=False))


def stored_values(session: Session, run_id: int, groups: Sequence[str]) -> LastValues:
    """The newest values of these groups, read from the stored blocks: those at the last steps."""
    return {group: _stored_values(session, run_id, group) for group in groups}


def fill_last_values(database: Database, most: int = AT_ONCE) -> int:
    """Read the newest values of up to `most` ended runs that an older version recorded, the newest runs first. Returns their
    number."""
    waiting = select(Run.id).where(Run.status.in_(FINAL), Run.last_values.is_(None)).order_by(Run.id.desc()).limit(most)
    with database.read() as session:
        runs = list(session.scalars(waiting))
    for run_id in runs:
        with database.write() as session:
            refresh_last_values(session, run_id)
    return len(runs)


def _stored_values(session: Session, run_id: int, group: str) -> list[Any]:
    of_group = select(BlockRow).where(BlockRow.run_id == run_id, BlockRow.level == 0, BlockRow.group_name == group)
    found: list[Any] = []
    newest_first = of_group.order_by(BlockRow.last_step.desc(), BlockRow.seq.desc()).execution_options(yield_per=8)
    rows = session.scalars(newest_first)
    for block in rows:
        try:
            numbers, places = stored_numbers(block), stored_places(block)
        except DamagedPayload:
            continue
        if places is not None:
            numbers = numbers[:, np.lexsort((places[1], places[0]))]
        found += [None] * (len(numbers) - len(found))
        _fill(found, numbers, replace=False)
        if None not in found:
            break
    rows.close()
    return found


def _fill(newest: list[Any], values: np.ndarray, *, replace: bool) -> None:
    """Put the last present value of each column into `newest`. replace: also where a value is known."""
    some = present(values)
    for column in range(len(values)):
        if some[column].any() and (replace or newest[column] is None):
            newest[column] = _json_number(values[column, np.flatnonzero(some[column])[-1]])


def _json_number(value: Any) -> Any:
    number = float(value)
    return spelling(number) or float(str(value))  # the fewest digits from which the same float32 can be read
