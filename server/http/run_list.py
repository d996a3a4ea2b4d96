"""The page with the list of runs: order, columns and saved views. A script can request the list without the rest of the
page."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal
from urllib.parse import quote, unquote, urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, Response
from pydantic import BeforeValidator, Field
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from server.access.tokens import Principal
from server.database.models import NOT_IN_TRASH, Run
from server.errors import Invalid
from server.http.api.deps import DatabaseDep, PrincipalDep, SettingsDep
from server.http.api.runs import ListQuery, count_listed, filter_refusal, run_list_json
from server.http.page_templates import pages_of, refusal_json
from server.http.schemas.runs import MAX_ID
from server.lifecycle.answers import run_rows, runs_json
from server.lifecycle.demo import tour
from server.lifecycle.submitters import owned_by
from server.search.columns import DEFAULT, KNOWN, Column, columns, orders, value
from server.search.filter_fields import config_fields, metric_name
from server.search.filter_syntax import FilterError
from server.search.folds import count_by_status, runs_of
from server.search.listing import COUNTED, listed_conditions
from server.search.views import views_json

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

COOKIE = "stablessm_columns"
SEEN = "stablessm_introduction"  # a browser with this cookie has seen the introduction
COOKIE_SECONDS = 365 * 86_400
SEPARATOR = ":"  # separates the columns in the cookie, which are percent-encoded
NOTHING: dict[str, Any] = {"runs": [], "next_cursor": None}


class PageQuery(ListQuery):
    """The parameters of the page: the parameters of the list, the columns, and the part of the page to send."""

    columns: list[str] = Field(default_factory=list, max_length=100)
    remember: bool = False  # True: store these columns in a cookie
    part: Literal["list"] | None = None
    fold: Annotated[bool, BeforeValidator(lambda given: given != "" and given)] = False  # True: each sweep as one row
    open: str = Field("", max_length=1000)  # the sweeps whose runs are shown below their row, separated by commas
    compare: int | None = Field(None, ge=1, le=MAX_ID)  # the number of a run with which other runs can be compared


@router.get("/")
def runs(
    request: Request, database: DatabaseDep, settings: SettingsDep, principal: PrincipalDep, asked: Annotated[PageQuery, Query()]
) -> Response:
    found, total, error, active, views, folds = NOTHING, 0, None, {}, [], {}
    chosen = columns(DEFAULT)
    with database.read() as session:
        try:
            chosen = _columns(asked, request)
            shown = [name for column in chosen if (name := metric_name(column.name)) is not None]
            found = run_list_json(session, asked, principal, settings.lease_seconds, fold=asked.fold, metrics=shown)
            more = found["next_cursor"] or asked.cursor
            total = count_listed(session, asked, principal, fold=asked.fold) if more else len(found["runs"])
            if asked.fold:
                folds = _folds(session, asked, principal, found["runs"], settings.lease_seconds, shown)
        except Invalid as why:
            error = refusal_json(why)
        active = _active(session)
        plain = not (error or asked.part or asked.q or asked.status or asked.tag or asked.cursor)
        guide = tour(session) if plain else None
        if principal.user_id is not None:
            views = views_json(session, principal.user_id)
    filters = asked.model_dump(exclude={"columns", "remember", "part", "compare", "open", "metrics"})
    context: dict[str, Any] = {
        "runs": found, "total": total, "counted": COUNTED, "error": error, "filters": filters, "columns": chosen, "value": value,
        "orders": orders(chosen, asked.sort),
        "views": views, "address": _addresses(filters, chosen if asked.columns else None), "known": KNOWN, "default": DEFAULT,
        "paths": config_fields(), "active": active, "tour": guide, "compare": asked.compare, "title": _title(active),
        "folds": folds, "seen": SEEN in request.cookies and bool(found["runs"]),
        "explicit": ",".join(column.name for column in chosen) if asked.columns else "",
    }  # fmt: skip
    status = 422 if error else 200
    if asked.part and not error:
        return _part(request, context)
    query = urlencode({k: v for k, v in filters.items() if v is not None and k != "fold"})
    answer = pages_of(request).render(
        "_runs_list.html" if asked.part else "runs.html", json_url=f"/api/runs?{query}", status=status, **context
    )
    if asked.remember and not error:
        _remember(answer, chosen)
    if SEEN not in request.cookies and found["runs"] and not asked.part:
        answer.set_cookie(SEEN, "seen", max_age=COOKIE_SECONDS, path="/", samesite="strict", httponly=True)
    return answer


def _folds(
    session: Session,
    asked: PageQuery,
    principal: Principal,
    listed: list[dict[str, Any]],
    lease_seconds: float,
    metrics: Sequence[str],
) -> dict[int, dict[str, Any]]:
    """For each sweep of the listed runs: the number of its runs that match the filter by status, and the runs themselves if
    the row of the sweep is opened."""
    dialect, me = session.get_bind().dialect.name, owned_by(principal)
    status, tag = asked.status or None, asked.tag or None
    conditions = listed_conditions(dialect, asked.q, status, tag, me, asked.mine, asked.hidden)
    sweeps = [run["sweep_id"] for run in listed if run["sweep_id"] is not None]
    opened = {int(number) for number in asked.open.split(",") if number.isascii() and number.isdigit() and len(number) < 18}
    folds = {}
    for sweep, statuses in count_by_status(session, sweeps, conditions).items():
        rows = run_rows(session, runs_of(sweep, conditions)) if sweep in opened else []
        others = opened ^ {sweep}
        folds[sweep] = {
            "statuses": statuses, "total": sum(statuses.values()), "opened": sweep in opened,
            "runs": runs_json(session, rows, lease_seconds, metrics), "toggle": ",".join(map(str, sorted(others))) or None,
        }  # fmt: skip
    return folds


def _part(request: Request, context: dict[str, Any]) -> Response:
    """Only the list, without the rest of the page, or status 304 if the list has not changed."""
    facts = [context[name] for name in ("runs", "total", "filters", "columns", "active", "folds")]
    tag = f'"{hashlib.blake2b(repr(facts).encode(), digest_size=12).hexdigest()}"'
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers={"ETag": tag})
    answer = pages_of(request).render("_runs_list.html", **context)
    answer.headers["ETag"] = tag
    return answer


def _columns(asked: PageQuery, request: Request) -> list[Column]:
    """The requested columns, by default the columns in this browser's cookie. Raises Invalid."""
    names = [name for given in asked.columns for name in given.split(",") if name.strip()]
    try:
        if names:
            return columns(names)
    except FilterError as error:
        raise filter_refusal(error) from None
    try:
        return columns([unquote(name) for name in request.cookies.get(COOKIE, "").split(SEPARATOR)]) or columns(DEFAULT)
    except FilterError:  # another version wrote the cookie
        return columns(DEFAULT)


def _remember(answer: Response, chosen: list[Column]) -> None:
    names = tuple(column.name for column in chosen)
    if names == DEFAULT:
        answer.delete_cookie(COOKIE, path="/", samesite="strict")
    else:
        answer.set_cookie(
            COOKIE,
            SEPARATOR.join(quote(name, safe="") for name in names),
            max_age=COOKIE_SECONDS,
            path="/",
            samesite="strict",
            httponly=True,
        )


def _addresses(filters: dict[str, Any], chosen: list[Column] | None) -> Callable[..., str]:
    """A function that returns the URL of this list with some parameters changed, such as address(sort="lr"). By default, the
    URL leads to the first page."""
    plain = ListQuery().model_dump() | {"fold": False, "open": None}

    def address(**changes: Any) -> str:
        now = filters | {"cursor": None, "open": None} | changes
        query = {name: str(now[name]).lower() if isinstance(now[name], bool) else now[name] for name in now}
        kept = {name: text for name, text in query.items() if now[name] not in (None, "", plain[name])}
        if chosen is not None:
            kept["columns"] = ",".join(column.name for column in chosen)
        return f"/?{urlencode(kept)}" if kept else "/"

    return address


def _active(session: Session) -> dict[str, int]:
    """The numbers of queued and running runs."""
    going = select(Run.status, func.count()).where(Run.status.in_(("running", "queued")), NOT_IN_TRASH).group_by(Run.status)
    return {row[0]: row[1] for row in session.execute(going)}


def _title(active: dict[str, int]) -> str:
    return ", ".join([f"{active[status]} {status}" for status in ("running", "queued") if active.get(status)] + ["Runs"])
