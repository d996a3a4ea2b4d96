"""Data that accompanies the list of runs: saved views, filter fields, small curves."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import parse_qsl

from fastapi import APIRouter, Query, Request
from pydantic import ValidationError

from server.access.tokens import Principal
from server.errors import Conflict, Invalid, NotFound
from server.http.api.deps import DatabaseDep, PrincipalDep
from server.http.api.runs import ListQuery, read_list
from server.http.schemas.lists import MAX_CHOSEN, FieldList, SparkList, ViewAnswer, ViewId, ViewList, ViewRequest
from server.http.schemas.runs import MAX_ID
from server.search.columns import columns
from server.search.completion import fields_json
from server.search.filter_syntax import FilterError
from server.search.views import delete_view, save_view, views_json
from stablessm_core.spec.suggestions import did_you_mean

router = APIRouter(prefix="/api", tags=["runs"])


@router.get("/fields", response_model=FieldList)
def fields(database: DatabaseDep) -> Any:
    """The fields of the filter language, with their possible values or the values that occur in this installation's runs."""
    with database.read() as session:
        return {"fields": fields_json(session)}


@router.get("/sparks", response_model=SparkList)
def sparks(
    database: DatabaseDep,
    request: Request,
    runs: Annotated[
        str, Query(max_length=20 * MAX_CHOSEN, description=f"Run numbers separated by commas, at most {MAX_CHOSEN}.")
    ],
) -> Any:
    """The training losses of many runs, as curves of a few points."""
    try:
        chosen = [int(number) for number in runs.split(",") if number]
    except ValueError:
        chosen = [0]
    if len(chosen) > MAX_CHOSEN or not all(0 < number <= MAX_ID for number in chosen):
        raise Invalid(f"runs is {runs[:40]!r}", field="runs", allowed=f"numbers separated by commas, at most {MAX_CHOSEN}")
    with database.read_autocommit() as session:
        return {"sparks": request.app.state.sparks.get(session, chosen)}


@router.get("/views", response_model=ViewList)
def views(database: DatabaseDep, principal: PrincipalDep) -> Any:
    """Your saved views of the list of runs, by name."""
    with database.read() as session:
        return {"views": [] if principal.user_id is None else views_json(session, principal.user_id)}


@router.post("/views", status_code=201, response_model=ViewAnswer)
def save_view_as(view: ViewRequest, database: DatabaseDep, principal: PrincipalDep) -> Any:
    """Save the filter, order and columns of the list under a name. An existing view with that name is replaced."""
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
    """Delete one of your views. This deletes no runs."""
    with database.write() as session:
        if not delete_view(session, _user(principal), view_id):
            raise NotFound(f"you have no view {view_id}", field="view_id", allowed="a view of GET /api/views")


def _user(principal: Principal) -> int:
    if principal.user_id is None:
        raise Conflict(
            "a view belongs to a user, but this token belongs to no user",
            field="user",
            allowed="a token of a user; PATCH /api/me creates one",
        )
    return principal.user_id


def _check(session: Any, query: str, principal: Principal) -> None:
    """Check the query string of a view. Raises Invalid if the list of runs would refuse it."""
    given = dict(parse_qsl(query))
    known = {*ListQuery.model_fields, "columns"} - {"cursor", "limit"}
    allowed = ", ".join(sorted(known))
    if unknown := sorted({*given} - known):
        raise Invalid(f"a view has no {unknown[0][:40]!r}{did_you_mean(unknown[0], known)}", field="query", allowed=allowed)
    try:
        columns(given.pop("columns", "").split(","))
        read_list(session, ListQuery.model_validate(given | {"limit": 1}), principal)
    except FilterError as error:
        raise Invalid(str(error), field="query", allowed=error.allowed) from None
    except ValidationError as error:
        first = error.errors()[0]
        raise Invalid(f"{first['loc'][0]}: {first['msg']}", field="query", allowed=allowed) from None
