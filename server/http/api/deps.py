"""The dependencies of request handlers, by type. They are async functions because they never block; the framework would run
synchronous functions in threads."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from pydantic import BaseModel

from server.access.tokens import Principal
from server.database.connection import Database
from server.errors import Invalid
from server.live.broadcaster import Broadcaster
from server.settings import Settings
from stablessm_core.spec.suggestions import did_you_mean


async def _database(request: Request) -> Database:
    return request.app.state.database  # type: ignore[no-any-return]


async def _settings(request: Request) -> Settings:
    return request.app.state.settings  # type: ignore[no-any-return]


async def _broadcaster(request: Request) -> Broadcaster:
    return request.app.state.broadcaster  # type: ignore[no-any-return]


async def _principal(request: Request) -> Principal:
    return request.state.principal  # type: ignore[no-any-return]


DatabaseDep = Annotated[Database, Depends(_database)]
SettingsDep = Annotated[Settings, Depends(_settings)]
BroadcasterDep = Annotated[Broadcaster, Depends(_broadcaster)]
PrincipalDep = Annotated[Principal, Depends(_principal)]


async def refuse_unknown_parameters(request: Request) -> None:
    """Refuse unknown query parameters, because a misspelt filter must not silently match all runs."""
    if not request.scope["query_string"]:
        return
    route = request.scope["route"]
    assert isinstance(route, APIRoute)
    known = _query_names(route.dependant)
    for name in request.query_params:
        if name not in known:
            guess = did_you_mean(name, known)
            raise Invalid(
                f"there is no parameter {name[:80]!r} here{guess}", field=name[:80], allowed=", ".join(sorted(known)) or "none"
            )


def _query_names(dependant: Dependant) -> set[str]:
    names: set[str] = set()
    for field in dependant.query_params:
        kind = field.field_info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            names |= {part.alias or name for name, part in kind.model_fields.items()}
        else:
            names.add(field.alias)
    return names.union(*(_query_names(part) for part in dependant.dependencies))
