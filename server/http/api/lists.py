"""What the list of runs needs besides the runs: saved views, fields to filter by, small curves."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import parse_qsl

from fastapi import APIRouter, Query, Request
from pydantic import ValidationError

from server.access.tokens import Principal
from server.errors import Conflict, Invalid, NotFound
from server.http.api.deps import DatabaseDep, PrincipalDep
from server.http.api.runs import ListQuery, listed
from server.http.schemas.lists import MAX_CHOSEN, FieldList, SparkList, ViewAnswer, ViewId, ViewList, ViewRequest
from server.http.schemas.runs import MAX_ID
from server.runs.columns import columns
from server.runs.completion import filter_fields
from server.runs.filter_syntax import FilterError
from server.runs.views import delete_view, save_view, views_of

router = APIRouter(prefix="/api", tags=["runs"])


@router.get("/fields", response_model=FieldList)
def fields(database: DatabaseDep) -> Any:
    """The fields of the filter language with the values that each can have, or that the runs here have."""
    with database.read() as session:
        return {"fields": filter_fields(session)}


@router.get("/sparks", response_model=SparkList)
def sparks(
    database: DatabaseDep,
    request: Request,
    runs: Annotated[str, Query(max_length=20 * MAX_CHOSEN, description=f"Numbers separated by commas, at most {MAX_CHOSEN}.")],
) -> Any:
    """Training losses of many runs as curves of a few points."""
    try:
        chosen = [int(number) for number in runs.split(",") if number]
    except ValueError:
        chosen = [0]
    if len(chosen) > MAX_CHOSEN or not all(0 < number <= MAX_ID for number in chosen):
        raise Invalid(f"runs is {runs[:40]!r}", field="runs", allowed=f"numbers separated by commas, at most {MAX_CHOSEN}")
    with database.glance() as session:
        return {"sparks": request.app.state.sparks.of(session, chosen)}


@router.get("/views", response_model=ViewList)
def views(database: DatabaseDep, principal: PrincipalDep) -> Any:
    """Your saved views of the list of runs, by name."""
    with database.read() as session:
        return {"views": [] if principal.user_id is None else views_of(session, principal.user_id)}


@router.post("/views", status_code=201, response_model=ViewAnswer)
def save_view_as(view: ViewRequest, database: DatabaseDep, principal: PrincipalDep) -> Any:
    """Save a view of the list: its filter, order and columns under a name. A view of that name is replaced."""
    user = _user(principal)
    with database.read() as session:
        _check(session, view.query, principal)
    with database.write() as session:
        try:
            return save_view(session, user, view.name, view.query)
        except ValueError as error:
            raise Conflict(str(error), field="name", allowed="delete one first") from None


@router.delete("/views/{view_id}", status_code=204)
def forget(view_id: ViewId, database: DatabaseDep, principal: PrincipalDep) -> None:
    """Forget one of your views; the runs stay."""
    with database.write() as session:
        if not delete_view(session, _user(principal), view_id):
            raise NotFound(f"you have no view {view_id}", field="view_id", allowed="a view of GET /api/views")


def _user(principal: Principal) -> int:
    if principal.user_id is None:
        raise Conflict("views belong to users, and this token names none", field="user", allowed="PATCH /api/me names you")
    return principal.user_id


def _check(session: Any, query: str, principal: Principal) -> None:
    """Raises Invalid for an address that the list would refuse."""
    given = dict(parse_qsl(query))
    known = {*ListQuery.model_fields, "columns"} - {"cursor", "limit"}
    allowed = ", ".join(sorted(known))
    if unknown := sorted({*given} - known):
        raise Invalid(f"a view has no {unknown[0][:40]!r}", field="query", allowed=allowed)
    try:
        columns(given.pop("columns", "").split(","))
        listed(session, ListQuery.model_validate(given | {"limit": 1}), principal)
    except FilterError as error:
        raise Invalid(str(error), field="query", allowed=error.allowed) from None
    except ValidationError as error:
        first = error.errors()[0]
        raise Invalid(f"{first['loc'][0]}: {first['msg']}", field="query", allowed=allowed) from None
