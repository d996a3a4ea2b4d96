"""The list of runs: filtered, sorted by any field, and read in pages with cursors that stay valid while runs are added."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, func, or_, select
from sqlalchemy.orm import Session

from server.database.models import NOT_IN_TRASH, Run
from server.search.filter_fields import Field, field
from server.search.filter_syntax import FilterError
from server.search.filters import has_tag, mentions, parse_filter
from server.search.folds import stands_for_its_sweep
from stablessm_core.spec.suggestions import did_you_mean
from stablessm_core.telemetry.statuses import STATUSES

MAX_LIMIT = 500
COUNTED = 100_000


@dataclass(frozen=True)
class RunPage:
    """A page of runs, or of their rows with the requested columns. `next_cursor` is None on the last page."""

    runs: list[Any]
    next_cursor: str | None


class CursorError(ValueError):
    """The cursor does not come from this list."""


def list_runs(
    session: Session,
    *,
    q: str = "",
    status: str | None = None,
    tag: str | None = None,
    sort: str = "-id",
    cursor: str | None = None,
    limit: int = 50,
    columns: Sequence[ColumnElement[Any]] = (),
    me: ColumnElement[bool] | None = None,
    mine: bool = False,
    hidden: bool = True,
    fold: bool = False,
) -> RunPage:
    """A page of runs.

    sort: a field of the filter language, with "-" in front for descending order. Runs without a value come last.
    me: the condition that a run belongs to the requesting user.
    mine: True to list only the runs of the requesting user.
    hidden: True to list hidden runs as well. A filter that uses the field `hidden` overrides this parameter.
    fold: True to list only one run of each sweep, the newest that matches.
    columns: read these columns instead of whole runs. The first column is the run's number.

    Raises FilterError (q, status, tag, sort; has `allowed`), CursorError, ValueError (limit).
    """
    if not 1 <= limit <= MAX_LIMIT:
        raise ValueError(f"limit is {limit}; allowed: 1 to {MAX_LIMIT}")
    dialect = session.get_bind().dialect.name
    me = me if mine or "me" in q else None
    page = _page(dialect, q, status, tag, sort, cursor, limit, tuple(columns), me, mine, hidden, fold)
    # rows that are not mapped to objects need no session
    found = (session.connection() if columns else session).execute(page).all()
    runs = list(found[:limit]) if columns else [row[0] for row in found[:limit]]
    more = len(found) > limit
    return RunPage(runs, _write_cursor(sort, found[limit - 1][-1], runs[-1].id) if more else None)


@lru_cache(256)
def _page(
    dialect: str, q: str, status: str | None, tag: str | None, sort: str, cursor: str | None, limit: int,
    columns: tuple[ColumnElement[Any], ...], me: ColumnElement[bool] | None, mine: bool, hidden: bool, fold: bool,
) -> Select[Any]:  # fmt: skip
    # cached, because composing the statement takes as long as executing it, and the same list is usually read again
    conditions = listed_conditions(dialect, q, status, tag, me, mine, hidden)
    if fold:
        conditions.append(stands_for_its_sweep(conditions))
    key, descending = _sort_field(sort, dialect)
    if cursor is not None:
        conditions.append(_after(key, descending, *_read_cursor(cursor, sort, key)))
    # find the ids first, because sorting whole runs or whole answers would cost several times as much
    chosen = select(Run.id, _column(key).label("key")).where(NOT_IN_TRASH, *conditions)
    page = chosen.order_by(*_order(key, Run.id, _column(key), descending)).limit(limit + 1).subquery()
    table = Run.__table__ if columns else Run  # rows that are not mapped to objects take half the time
    wanted = select(*(columns or (Run,)), page.c.key).join_from(table, page, page.c.id == Run.__table__.c.id)
    return wanted.order_by(*_order(key, page.c.id, page.c.key, descending))


def count_runs(
    session: Session, *, q: str = "", status: str | None = None, tag: str | None = None, me: ColumnElement[bool] | None = None,
    mine: bool = False, hidden: bool = True, fold: bool = False,
) -> int:  # fmt: skip
    """The number of runs on all pages of list_runs, at most COUNTED + 1. Raises FilterError."""
    me = me if mine or "me" in q else None
    conditions = listed_conditions(session.get_bind().dialect.name, q, status, tag, me, mine, hidden)
    if fold:
        conditions.append(stands_for_its_sweep(conditions))
    chosen = select(Run.id).where(NOT_IN_TRASH, *conditions).limit(COUNTED + 1).subquery()
    return session.scalar(select(func.count()).select_from(chosen)) or 0


def listed_conditions(
    dialect: str, q: str, status: str | None, tag: str | None, me: ColumnElement[bool] | None, mine: bool, hidden: bool
) -> list[ColumnElement[bool]]:  # fmt: skip
    """The SQL conditions of a list of runs; the parameters are those of list_runs. Raises FilterError."""
    conditions = matching(dialect, q=q, status=status, tag=tag, me=me)
    if mine and me is not None:
        conditions.append(me)
    if not hidden and not mentions(q, "hidden"):
        conditions.append(Run.hidden.is_(False))
    return conditions


def matching(
    dialect: str, *, q: str = "", status: str | None = None, tag: str | None = None, me: ColumnElement[bool] | None = None
) -> list[ColumnElement[bool]]:  # fmt: skip
    """The SQL conditions of a filter, a list of statuses and a tag. Raises FilterError."""
    conditions = parse_filter(q, dialect, me)
    if status:
        wanted = [s.strip() for s in status.split(",")]
        if unknown := [s for s in wanted if s not in STATUSES]:
            raise FilterError(
                f"{unknown[0][:40]!r} is not a status{did_you_mean(unknown[0], STATUSES)}",
                ", ".join(STATUSES),
                parameter="status",
            )
        conditions.append(Run.status.in_(wanted))
    if tag:
        conditions.append(has_tag(tag, dialect))
    return conditions


def chosen_runs(
    session: Session, *, ids: Sequence[int] | None = None, sweep: int | None = None, q: str | None = None, limit: int,
    me: ColumnElement[bool] | None = None,
) -> list[Run]:  # fmt: skip
    """The runs with these numbers in this order, or the runs of a sweep or filter, oldest first.

    Raises LookupError for an unknown number, FilterError, and ValueError if there are more than `limit` runs.
    """
    conditions: list[ColumnElement[bool]] = [NOT_IN_TRASH]
    if ids is not None:
        conditions.append(Run.id.in_(ids))
    if sweep is not None:
        conditions.append(Run.sweep_id == sweep)
    if q is not None:
        conditions += parse_filter(q, session.get_bind().dialect.name, me)
    runs = list(session.scalars(select(Run).where(*conditions).order_by(Run.id).limit(limit + 1)))
    if len(runs) > limit:
        raise ValueError(f"more than {limit} runs match; at most {limit} are allowed")
    if ids is not None:
        by_id = {run.id: run for run in runs}
        if absent := [i for i in ids if i not in by_id]:
            raise LookupError(f"there is no run {absent[0]}")
        runs = [by_id[i] for i in dict.fromkeys(ids)]
    return runs


def _sort_field(sort: str, dialect: str) -> tuple[Field, bool]:
    descending = sort.startswith("-")
    try:
        key = field(sort.removeprefix("-"), dialect)
    except FilterError as error:
        raise FilterError(error.message, error.allowed, parameter="sort") from None
    if key.kind == "tag":
        raise FilterError("runs cannot be sorted by tag, because a run may have several", "any other field", parameter="sort")
    return key, descending


def _column(key: Field) -> ColumnElement[Any]:
    return key.column if key.order is None else key.order


def _order(key: Field, number: Any, column: Any, descending: bool) -> list[Any]:
    first = column.desc() if descending else column.asc()
    return [first.nulls_last() if key.nullable else first, number.desc() if descending else number]


def _after(key: Field, descending: bool, value: Any, run_id: int) -> ColumnElement[bool]:
    column, later = _column(key), Run.id < run_id if descending else Run.id > run_id
    if value is None:
        return and_(column.is_(None), later)
    here = key.literal(value)
    after = [column < here if descending else column > here, and_(column == here, later)]
    return or_(*after, column.is_(None)) if key.nullable else or_(*after)


def _write_cursor(sort: str, value: Any, run_id: int) -> str:
    # repr keeps full float precision; JSON has no infinities
    spelled = repr(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
    return base64.urlsafe_b64encode(json.dumps([sort, spelled, run_id], separators=(",", ":")).encode()).decode().rstrip("=")


def _read_cursor(cursor: str, sort: str, key: Field) -> tuple[Any, int]:
    refused = CursorError(f"cursor {cursor[:40]!r} does not come from this list")
    try:
        decoded = json.loads(base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True))
        made_for, value, run_id = decoded
    except (ValueError, TypeError):
        raise refused from None
    if made_for != sort:
        raise CursorError(f"cursor was made for sort {str(made_for)[:40]!r}, not {sort!r}")
    if type(run_id) is not int or not 0 < run_id < 2**63:
        raise refused
    if value is None or (key.kind == "flag" and isinstance(value, bool)):
        return value, run_id
    if not isinstance(value, str) or "\0" in value:
        raise refused
    if not key.is_number:
        return value, run_id
    try:
        number = float(value)
    except ValueError:
        raise refused from None
    if math.isnan(number):
        raise refused
    return number, run_id
