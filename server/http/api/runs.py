"""Runs: submit, list, look at, change, stop, go on."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import BaseModel, Field
from sqlalchemy import Row
from sqlalchemy.orm import Session

from server.access.tokens import Principal
from server.database.connection import Database
from server.database.models import Run
from server.errors import Conflict, Invalid, NotFound
from server.http.api.deps import DatabaseDep, PrincipalDep, SettingsDep
from server.http.schemas.queues import Placed, columns
from server.http.schemas.runs import CloneRequest, RunAnswer, RunId, RunList, RunPatch
from server.runs import lifecycle
from server.runs.answers import RUN_COLUMNS, run_answers, run_row, runs_json
from server.runs.filter_syntax import MAX_LENGTH, FilterError
from server.runs.listing import MAX_LIMIT, CursorError, RunPage, count_runs, list_runs
from server.runs.quotas import check_quota
from server.runs.submission import submit_run
from server.runs.submitters import check_own, mine
from server.runs.trash import why_absent
from server.runs.worker_wakeups import wake_workers
from server.series.encoding import dumps, json_response
from server.settings import Settings
from stablessm_core.config import RunConfig, parse_config, with_settings

router = APIRouter(prefix="/api/runs", tags=["runs"])
WITHOUT: dict[str, Any] = {"tags": [], "notes": "", "hidden": False}  # what null means in a patch


def find_run(session: Session, run_id: int) -> Run:
    """Raises NotFound, of a run in the trash too."""
    run = session.get(Run, run_id)
    if run is None or run.deleted_at is not None:
        raise absent(session, run_id)
    return run


def absent(session: Session, run_id: int) -> NotFound:
    run = session.get(Run, run_id)
    allowed = None if run is None else f"POST /api/runs/{run_id}/restore brings it back"
    return NotFound(why_absent(run, run_id), field="run_id", allowed=allowed)


def run_shown(session: Session, run_id: int, lease_seconds: float) -> dict[str, Any]:
    """RunAnswer. Raises NotFound."""
    return run_answers(session, [_row(session, run_id)], lease_seconds)[0]


def _row(session: Session, run_id: int) -> Row[Any]:
    row = run_row(session, run_id)
    if row is None:
        raise absent(session, run_id)
    return row


@router.post("", status_code=201, response_model=RunAnswer, responses={200: {"model": RunAnswer}})
def submit(
    config: RunConfig,
    database: DatabaseDep,
    settings: SettingsDep,
    principal: PrincipalDep,
    request: Request,
    response: Response,
    place: Annotated[Placed, Query()],
    idempotency_key: Annotated[
        str | None, Header(min_length=1, max_length=200, description="The same key with the same body submits once.")
    ] = None,
) -> Any:
    """Queue a training run. 201 when it is new, 200 when the idempotency key already made it."""
    run, new = submit_run(
        database, settings, config, key=idempotency_key, submitted_by=principal.token_id, user_id=principal.user_id,
        place=columns(place),
    )  # fmt: skip
    response.status_code = 201 if new else 200
    response.headers["Location"] = f"/api/runs/{run.id}"
    return _written(request, database, run.id)


class ListQuery(BaseModel):
    """Which runs, in which order, from where on."""

    q: str = Field("", max_length=MAX_LENGTH, description="For example `reparam=best lr>=0.005 status=diverged`.")
    status: str | None = Field(None, max_length=100, description="One or several, separated by commas.")
    tag: str | None = Field(None, max_length=200)
    mine: bool = Field(False, description="Only runs that you submitted.")
    hidden: bool = Field(False, description="Hidden runs too; a filter that says `hidden=...` decides for itself.")
    sort: str = Field("-id", max_length=200, description="A field of the filter language, `-` before it for descending.")
    cursor: str | None = Field(None, max_length=2000, description="`next_cursor` of the page before.")
    limit: int = Field(50, ge=1, le=MAX_LIMIT)


Listed = Annotated[ListQuery, Query()]


@router.get("", response_model=RunList)
def index(database: DatabaseDep, settings: SettingsDep, principal: PrincipalDep, query: Listed) -> Response:
    """Runs by filter, page by page.

    `q` is made of `field op value` with `= != < <= > >= ~`, `field in (value, value)`, words of the name, `OR`, `NOT` and
    parentheses; what stands side by side must all hold. Fields are `reparam`, `lr`, `task`, `status`, `tag`, `step`, `loss`,
    `created`, `duration`, `alerts`, `submitted_by`, ..., any dotted path of the configuration, and `result.<name>`.
    """
    with database.glance() as session:
        page = listed(session, query, principal)
        runs = b",".join(runs_json(session, page.runs, settings.lease_seconds))
    return json_response(b'{"runs":[' + runs + b'],"next_cursor":' + dumps(page.next_cursor) + b"}")


def run_page(session: Session, query: ListQuery, principal: Principal, lease_seconds: float) -> dict[str, Any]:
    """RunList for the query. Raises Invalid."""
    page = listed(session, query, principal)
    return {"runs": run_answers(session, page.runs, lease_seconds), "next_cursor": page.next_cursor}


def counted(session: Session, query: ListQuery, principal: Principal) -> int:
    """How many runs there are for the query."""
    return count_runs(
        session, q=query.q, status=query.status or None, tag=query.tag or None, me=mine(principal), mine=query.mine,
        hidden=query.hidden,
    )  # fmt: skip


def listed(session: Session, query: ListQuery, principal: Principal) -> RunPage:
    """The rows of RUN_COLUMNS for the query. Raises Invalid."""
    try:
        return list_runs(
            session, q=query.q, status=query.status or None, tag=query.tag or None, sort=query.sort,
            cursor=query.cursor or None, limit=query.limit, columns=RUN_COLUMNS, me=mine(principal), mine=query.mine,
            hidden=query.hidden,
        )  # fmt: skip
    except FilterError as error:
        raise refused_filter(error) from None
    except CursorError as error:
        raise Invalid(str(error), field="cursor", allowed="next_cursor of the page before, with the same sort") from None


class RefusedFilter(Invalid):
    """A filter that is refused; `position` and `length`: the piece of it that is meant, for the page."""

    position, length = 0, 0


def refused_filter(error: FilterError) -> RefusedFilter:
    refused = RefusedFilter(str(error), field=error.parameter, allowed=error.allowed)
    refused.position, refused.length = error.position, error.length
    return refused


@router.get("/{run_id}", response_model=RunAnswer)
def show(run_id: RunId, database: DatabaseDep, settings: SettingsDep) -> Response:
    """One run with its complete configuration, progress and result."""
    with database.glance() as session:
        return json_response(runs_json(session, [_row(session, run_id)], settings.lease_seconds)[0])


@router.patch("/{run_id}", response_model=RunAnswer)
def change(
    run_id: RunId, patch: RunPatch, database: DatabaseDep, settings: SettingsDep, principal: PrincipalDep, request: Request
) -> Any:
    """Change name, tags, notes, or whether lists leave it out; while the run is queued also its queue, priority and GPU."""
    with database.write() as session:
        run = find_run(session, run_id)
        check_own(principal, run)
        if place := columns(patch):
            try:
                lifecycle.move(session, run_id, place)
            except lifecycle.NotAllowed as error:
                raise Conflict(str(error), field=next(iter(place)).removeprefix("needs_")) from None
        for name in patch.model_fields_set & {"name", "tags", "notes", "hidden"}:
            value = getattr(patch, name)
            setattr(run, name, value if value is not None or name == "name" else WITHOUT[name])
    if place:
        wake_workers(settings.broker_url)  # it may fit a worker now that had nothing to do
    return _written(request, database, run_id)


@router.post("/{run_id}/cancel", response_model=RunAnswer)
def cancel(run_id: RunId, database: DatabaseDep, principal: PrincipalDep, request: Request) -> Any:
    """Stop a queued run at once, a running one within seconds; what it has recorded stays."""
    return _change_status(request, database, principal, run_id, lifecycle.request_cancel)


@router.post("/{run_id}/resume", response_model=RunAnswer)
def resume(run_id: RunId, database: DatabaseDep, settings: SettingsDep, principal: PrincipalDep, request: Request) -> Any:
    """Queue a failed, diverged or cancelled run again; it continues after its last checkpoint.

    One that diverged repeats the same numbers and diverges again, unless its cause lay outside of it: fork it with a change.
    """
    answer = _change_status(request, database, principal, run_id, _resume_within_quota)
    wake_workers(settings.broker_url)
    return answer


@router.post("/{run_id}/clone", status_code=201, response_model=RunAnswer)
def clone(
    run_id: RunId, database: DatabaseDep, settings: SettingsDep, principal: PrincipalDep, response: Response,
    request: CloneRequest | None = None,
) -> Any:  # fmt: skip
    """Submit the same configuration again, with changes if wanted."""
    made = clone_run(database, settings, principal, run_id, request)
    response.headers["Location"] = f"/api/runs/{made}"
    return _answer(database, settings, made)


def clone_run(
    database: Database, settings: Settings, principal: Principal, run_id: int, request: CloneRequest | None = None
) -> int:  # fmt: skip
    """Number of the new run. Raises NotFound, ConfigError, and whatever refuses a submission."""
    with database.read() as session:
        run = find_run(session, run_id)
        base, place = dict(run.config), {"queue": run.queue, "priority": run.priority, "needs_gpu": run.needs_gpu}
    if request is not None:
        place |= columns(request)
    config = parse_config(with_settings(base, request.set if request else {}))
    new, _ = submit_run(
        database, settings, config, cloned_from=run_id, submitted_by=principal.token_id, user_id=principal.user_id, place=place
    )
    return new.id


def _answer(database: Database, settings: Settings, run_id: int) -> dict[str, Any]:
    with database.glance() as session:
        return run_shown(session, run_id, settings.lease_seconds)


def _written(request: Request, database: Database, run_id: int) -> dict[str, Any]:
    answer = _answer(database, request.app.state.settings, run_id)
    request.state.attempt = answer["attempt"]  # for the log's line about this write
    return answer


def _resume_within_quota(session: Session, run_id: int) -> None:
    run = lifecycle.resume_run(session, run_id)
    check_quota(session, run.user_id, 0)  # it is counted already


def _change_status(request: Request, database: Database, principal: Principal, run_id: int, act: Any) -> dict[str, Any]:
    with database.write() as session:
        check_own(principal, find_run(session, run_id))
        try:
            act(session, run_id)
        except lifecycle.NotAllowed as error:
            raise Conflict(str(error), field="status") from None
    return _written(request, database, run_id)
