"""Opens a run that another program trains and reports, or opens it again for a program that continues it."""

from __future__ import annotations

import time

from sqlalchemy import select
from sqlalchemy.orm import Session

from server.access.tokens import Principal
from server.database.fence import add_transition, insert_into
from server.database.models import Run
from server.errors import EXISTS, Conflict, NotFound
from server.ingest.reports import check_reporter
from server.ingest.schemas import OpenRequest
from server.lifecycle.quotas import check_bytes
from server.lifecycle.reported import REPORTED
from server.series.recording import delete_steps
from stablessm_core.telemetry.statuses import FINAL

FAR_SECONDS = 60.0  # a clock that differs by more is mentioned in the run's history


def open_run(session: Session, opening: OpenRequest, principal: Principal) -> tuple[Run, bool]:
    """The open run with its new attempt, and True if the run is new.

    Opening a known run again ends its earlier attempt: from then on, posts of that attempt are refused. With `complete`, a run
    that has ended keeps its attempt and its end. Raises Conflict with
    the code `exists` if the run is known and may not be resumed, NotFound if it must be resumed and is unknown, Forbidden for a
    run of somebody else, and Invalid if the user's stored bytes reach the quota.
    """
    check_bytes(session, principal.user_id)
    run = _find(session, opening.id)
    if run is None and opening.resume != "must" and (run := _insert(session, opening, principal)) is not None:
        return run, True
    run = run or _find(session, opening.id)  # another request may have opened the run meanwhile
    if run is None:
        raise NotFound(f"there is no run with the id {opening.id}", field="id", allowed="the id of a run, or resume = allow")
    check_reporter(principal, run)
    if opening.resume == "never":
        raise Conflict(
            f"run {run.id} has the id {opening.id} already", field="id", code=EXISTS,
            allowed="a new id, or resume = allow to continue the run",
        )  # fmt: skip
    if run.deleted_at is not None:
        raise Conflict(f"run {run.id} is in the trash", field="id", allowed=f"POST /api/runs/{run.id}/restore restores it")
    if opening.resume != "complete" or run.status not in FINAL:
        _resume(session, run, opening)
    return run, False


def _find(session: Session, external_id: str) -> Run | None:
    chosen = select(Run).where(Run.external_id == external_id).with_for_update().execution_options(populate_existing=True)
    return session.scalars(chosen).one_or_none()


def _insert(session: Session, opening: OpenRequest, principal: Principal) -> Run | None:
    now = time.time()
    values = {
        "external_id": opening.id,
        "kind": REPORTED,
        "project": opening.project,
        "name": opening.name,
        "tags": opening.tags,
        "notes": opening.notes,
        "config": {},
        "reported_config": opening.config,
        "how": opening.how_data,
        "layers": opening.layers_data,
        "rules": opening.rules_data,
        "status": "running",
        "attempt": 1,
        "submitted_by": principal.token_id,
        "user_id": principal.user_id,
        "created_at": now,
        "started_at": now if opening.started_at is None else min(now, opening.started_at),
    }
    statement = insert_into(session, Run).values(values).on_conflict_do_nothing(index_elements=["external_id"])
    number = session.execute(statement.returning(Run.id)).scalar_one_or_none()
    if number is None:
        return None
    run = session.get_one(Run, number)
    run.status_reason = "opened by the program that trains it" + _clock(opening.client_time, now)
    add_transition(session, run, run.status_reason)
    return run


def _resume(session: Session, run: Run, opening: OpenRequest) -> None:
    cut = opening.from_step is not None and opening.from_step < run.step
    if opening.from_step is not None:
        deleted = delete_steps(session, run.id, opening.from_step + 1)
        run.step, cut = min(run.step, opening.from_step), cut or deleted
    run.attempt, run.status, run.beat, run.cancel_requested = run.attempt + 1, "running", 0, False
    run.finished_at = run.result = run.divergence = run.steps_per_second = None
    run.compacted_at = run.cause = run.judged_at = run.unstable = None  # the steps from now on must also be merged and judged
    if opening.config:
        run.reported_config = opening.config
    run.how = opening.how_data or run.how
    run.layers = run.layers if opening.layers is None else opening.layers_data
    if (rules := opening.rules_data) is not None and rules != run.rules:
        run.rules, run.rule_states = rules, None
    run.status_reason = f"attempt {run.attempt}, continued after step {run.step}" + _clock(opening.client_time, time.time())
    add_transition(session, run, run.status_reason, truncated_from=run.step + 1 if cut else None)


def _clock(clock: float | None, now: float) -> str:
    """A note on the program's clock; "" if it is near ours. No time of the program is stored: every time is the server's."""
    if clock is None or abs(now - clock) <= FAR_SECONDS:
        return ""
    return f"; the program's clock is {abs(now - clock):,.0f} s {'behind' if clock < now else 'ahead of'} the server's"
