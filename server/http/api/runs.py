"""Runs: submit, list, read, change, cancel, resume, clone."""

from __future__ import annotations

from collections.abc import Sequence
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
from server.http.schemas.queues import QueueQuery, queue_columns
from server.http.schemas.runs import CloneRequest, RunAnswer, RunId, RunList, RunPatch, RunRequest
from server.keep.trash import why_absent
from server.lifecycle import transitions as lifecycle
from server.lifecycle.answers import RUN_COLUMNS, run_row, runs_json, runs_json_bytes
from server.lifecycle.quotas import check_quota
from server.lifecycle.reported import check_trained
from server.lifecycle.submission import submit_run
from server.lifecycle.submitters import check_own, owned_by
from server.lifecycle.worker_wakeups import wake_workers
from server.search.filter_syntax import MAX_LENGTH, FilterError
from server.search.listing import MAX_LIMIT, CursorError, RunPage, count_runs, list_runs
from server.series.encoding import dumps, json_response
from server.settings import Settings
from stablessm_core.spec.config import parse_config
from stablessm_core.spec.paths import with_settings

router = APIRouter(prefix="/api/runs", tags=["runs"])
# the values that a null in a patch stands for
WITHOUT: dict[str, Any] = {"tags": [], "notes": "", "project": "", "hidden": False}


def find_run(session: Session, run_id: int) -> Run:
    """The run with this number. Raises NotFound if the run does not exist or is in the trash."""
    run = session.get(Run, run_id)
    if run is None or run.deleted_at is not None:
        raise run_not_found(session, run_id)
    return run


def run_not_found(session: Session, run_id: int) -> NotFound:
    """The error for a run that does not exist or is in the trash."""
    run = session.get(Run, run_id)
    allowed = None if run is None else f"POST /api/runs/{run_id}/restore restores it"
    return NotFound(why_absent(run, run_id), field="run_id", allowed=allowed)


def run_json(session: Session, run_id: int, lease_seconds: float) -> dict[str, Any]:
    """The RunAnswer of a run. Raises NotFound."""
    return runs_json(session, [_row(session, run_id)], lease_seconds, metrics=None)[0]


def _row(session: Session, run_id: int) -> Row[Any]:
    row = run_row(session, run_id)
    if row is None:
        raise run_not_found(session, run_id)
    return row


@router.post("", status_code=201, response_model=RunAnswer, responses={200: {"model": RunAnswer}})
def submit(
    body: RunRequest,
    database: DatabaseDep,
    settings: SettingsDep,
    principal: PrincipalDep,
    request: Request,
    response: Response,
    waiting: Annotated[QueueQuery, Query()],
    idempotency_key: Annotated[
        str | None,
        Header(min_length=1, max_length=200, description="A repeated request with the same key and body submits only once."),
    ] = None,
) -> Any:
    """Queue a training run. The status is 201 for a new run, and 200 if an earlier request with the same idempotency key created
    the run."""
    run, new = submit_run(
        database, settings, body.config(), key=idempotency_key, submitted_by=principal.token_id, user_id=principal.user_id,
        queue_columns=queue_columns(waiting), project=body.project,
    )  # fmt: skip
    response.status_code = 201 if new else 200
    response.headers["Location"] = f"/api/runs/{run.id}"
    return _written_run_json(request, database, run.id)


class ListQuery(BaseModel):
    """The filter, the order and the page of a list of runs."""

    q: str = Field("", max_length=MAX_LENGTH, description="For example `reparam=best lr>=0.005 status=diverged`.")
    status: str | None = Field(None, max_length=100, description="One status, or several separated by commas.")
    tag: str | None = Field(None, max_length=200)
    mine: bool = Field(False, description="Only your own runs.")
    hidden: bool = Field(False, description="Also list hidden runs. A filter with `hidden=...` overrides this.")
    sort: str = Field("-id", max_length=200, description="A field of the filter language; `-` before it means descending order.")
    cursor: str | None = Field(None, max_length=2000, description="`next_cursor` of the previous page.")
    limit: int = Field(50, ge=1, le=MAX_LIMIT)
    metrics: str = Field(
        "", max_length=4000, description="Names of scalars, separated by commas: `metrics` of each run has their newest values."
    )

    @property
    def metric_names(self) -> list[str]:
        return [name.strip() for name in self.metrics.split(",") if name.strip()]


Listed = Annotated[ListQuery, Query()]


@router.get("", response_model=RunList)
def index(database: DatabaseDep, settings: SettingsDep, principal: PrincipalDep, query: Listed) -> Response:
    """The runs that match a filter, in pages.

    `q` consists of `field op value` with `= != < <= > >= ~`, `field in (value, value)`, words of the name, `OR`, `NOT` and
    parentheses; adjacent terms must all hold. Fields are `reparam`, `lr`, `task`, `status`, `tag`, `step`, `loss`, `created`,
    `duration`, `alerts`, `submitted_by`, ..., any dotted path of the configuration, and `result.<name>`.
    """
    with database.read_autocommit() as session:
        page = read_list(session, query, principal)
        runs = b",".join(runs_json_bytes(session, page.runs, settings.lease_seconds, query.metric_names))
    return json_response(b'{"runs":[' + runs + b'],"next_cursor":' + dumps(page.next_cursor) + b"}")


def run_list_json(
    session: Session, query: ListQuery, principal: Principal, lease_seconds: float, *, fold: bool = False,
    metrics: Sequence[str] = (),
) -> dict[str, Any]:  # fmt: skip
    """The RunList of the query, with the newest values of these scalars; with `fold`, one run of each sweep. Raises Invalid."""
    page = read_list(session, query, principal, fold=fold)
    return {"runs": runs_json(session, page.runs, lease_seconds, metrics), "next_cursor": page.next_cursor}


def count_listed(session: Session, query: ListQuery, principal: Principal, *, fold: bool = False) -> int:
    """The number of runs that match the query."""
    return count_runs(
        session, q=query.q, status=query.status or None, tag=query.tag or None, me=owned_by(principal), mine=query.mine,
        hidden=query.hidden, fold=fold,
    )  # fmt: skip


def read_list(session: Session, query: ListQuery, principal: Principal, *, fold: bool = False) -> RunPage:
    """One page of the runs that match the query, with the columns RUN_COLUMNS. Raises Invalid."""
    try:
        return list_runs(
            session, q=query.q, status=query.status or None, tag=query.tag or None, sort=query.sort,
            cursor=query.cursor or None, limit=query.limit, columns=RUN_COLUMNS, me=owned_by(principal), mine=query.mine,
            hidden=query.hidden, fold=fold,
        )  # fmt: skip
    except FilterError as error:
        raise filter_refusal(error) from None
    except CursorError as error:
        raise Invalid(str(error), field="cursor", allowed="next_cursor of the previous page, with the same sort") from None


class RefusedFilter(Invalid):
    """The error for an invalid filter. `position` and `length` mark the invalid part for the page."""

    position, length = 0, 0


def filter_refusal(error: FilterError) -> RefusedFilter:
    refused = RefusedFilter(str(error), field=error.parameter, allowed=error.allowed)
    refused.position, refused.length = error.position, error.length
    return refused


@router.get("/{run_id}", response_model=RunAnswer)
def show(run_id: RunId, database: DatabaseDep, settings: SettingsDep) -> Response:
    """A run with its complete configuration, progress and result."""
    with database.read_autocommit() as session:
        return json_response(runs_json_bytes(session, [_row(session, run_id)], settings.lease_seconds, metrics=None)[0])


@router.patch("/{run_id}", response_model=RunAnswer)
def change(
    run_id: RunId, patch: RunPatch, database: DatabaseDep, settings: SettingsDep, principal: PrincipalDep, request: Request
) -> Any:
    """Change the name, tags, notes, project or visibility of a run, and the queue, priority and GPU of a queued run."""
    with database.write() as session:
        run = find_run(session, run_id)
        check_own(principal, run)
        if moved := queue_columns(patch):
            try:
                lifecycle.move(session, run_id, moved)
            except lifecycle.NotAllowed as error:
                raise Conflict(str(error), field=next(iter(moved)).removeprefix("needs_")) from None
        for name in patch.model_fields_set & {"name", "tags", "notes", "project", "hidden"}:
            value = getattr(patch, name)
            setattr(run, name, value if value is not None or name == "name" else WITHOUT[name])
    if moved:
        wake_workers(settings.broker_url)  # an idle worker may be able to take the run now
    return _written_run_json(request, database, run_id)


@router.post("/{run_id}/cancel", response_model=RunAnswer)
def cancel(run_id: RunId, database: DatabaseDep, principal: PrincipalDep, request: Request) -> Any:
    """Cancel a queued run at once, or a running run within seconds. The values recorded so far are kept."""
    return _change_status(request, database, principal, run_id, lifecycle.request_cancel)


@router.post("/{run_id}/resume", response_model=RunAnswer)
def resume(run_id: RunId, database: DatabaseDep, settings: SettingsDep, principal: PrincipalDep, request: Request) -> Any:
    """Queue a failed, diverged or cancelled run again. It then continues from its last checkpoint.

    A diverged run computes the same values and diverges again, unless something outside the run caused the divergence. To
    change a setting, fork the run.
    """
    answer = _change_status(request, database, principal, run_id, _resume_within_quota)
    wake_workers(settings.broker_url)
    return answer


@router.post("/{run_id}/clone", status_code=201, response_model=RunAnswer)
def clone(
    run_id: RunId, database: DatabaseDep, settings: SettingsDep, principal: PrincipalDep, response: Response,
    request: CloneRequest | None = None,
) -> Any:  # fmt: skip
    """Submit the same configuration again, optionally with changes."""
    made = clone_run(database, settings, principal, run_id, request)
    response.headers["Location"] = f"/api/runs/{made}"
    return _read_run_json(database, settings, made)


def clone_run(
    database: Database, settings: Settings, principal: Principal, run_id: int, request: CloneRequest | None = None
) -> int:  # fmt: skip
    """Submit a copy of the run and return its number. Raises NotFound, ConfigError, and the errors of `submit_run`."""
    with database.read() as session:
        run = find_run(session, run_id)
        check_trained(run)
        project = run.project
        base, waits = dict(run.config), {"queue": run.queue, "priority": run.priority, "needs_gpu": run.needs_gpu}
    if request is not None:
        waits |= queue_columns(request)
        project = project if request.project is None else request.project
    config = parse_config(with_settings(base, request.set if request else {}))
    new, _ = submit_run(
        database,
        settings,
        config,
        cloned_from=run_id,
        submitted_by=principal.token_id,
        user_id=principal.user_id,
        queue_columns=waits,
        project=project,
    )
    return new.id


def _read_run_json(database: Database, settings: Settings, run_id: int) -> dict[str, Any]:
    with database.read_autocommit() as session:
        return run_json(session, run_id, settings.lease_seconds)


def _written_run_json(request: Request, database: Database, run_id: int) -> dict[str, Any]:
    answer = _read_run_json(database, request.app.state.settings, run_id)
    request.state.attempt = answer["attempt"]  # the log line of this request contains the attempt
    return answer


def _resume_within_quota(session: Session, run_id: int) -> None:
    run = lifecycle.resume_run(session, run_id)
    check_quota(session, run.user_id, 0)  # the run already counts as queued, so no run is added


def _change_status(request: Request, database: Database, principal: Principal, run_id: int, act: Any) -> dict[str, Any]:
    with database.write() as session:
        check_own(principal, find_run(session, run_id))
        try:
            act(session, run_id)
        except lifecycle.NotAllowed as error:
            raise Conflict(str(error), field="status") from None
    return _written_run_json(request, database, run_id)
