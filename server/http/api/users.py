"""Users: everyone can read their own quotas and set their own name. Administrators manage all users, grants and quotas."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from sqlalchemy.orm import Session

from server.access import users
from server.access.names import ALLOWED, BadName
from server.access.tokens import Principal
from server.database.connection import Database
from server.database.models import User
from server.errors import Conflict, Invalid, NotFound
from server.http.api.deps import DatabaseDep, PrincipalDep
from server.http.schemas.users import Me, NamePatch, UserAnswer, UserId, UserList, UserPatch, UserRequest

router = APIRouter(prefix="/api", tags=["users"])

FIELDS = ("id", "name", "identity", "may_change_all", "max_running", "max_queued", "max_bytes", "created_at")
ANOTHER = "a name and an identity that no other user has"


@router.get("/me", response_model=Me)
def me(database: DatabaseDep, principal: PrincipalDep) -> Any:
    """Your token with its scope, and your user with its quotas and current use."""
    return me_json(database, principal)


@router.patch("/me", response_model=Me)
def name_me(patch: NamePatch, database: DatabaseDep, principal: PrincipalDep, request: Request) -> Any:
    """Set the name that all your runs show. If your token has no user yet, a user with this name is created for it."""
    try:
        with database.write() as session:
            if principal.user_id is not None:
                users.change_user(session, principal.user_id, {"name": patch.name})
            elif principal.token_id is not None:
                users.name_token(session, principal.token_id, patch.name)
    except BadName as error:
        raise Invalid(str(error), field="name", allowed=ALLOWED) from None
    except users.NameTaken as error:
        raise Conflict(str(error), field="name", allowed=ANOTHER) from None
    cache = request.app.state.access.token_cache
    cache.forget()
    with database.read() as session:
        return _me_json(session, cache.with_user_of_token(session, principal))


@router.get("/users", response_model=UserList)
def index(database: DatabaseDep) -> Any:
    """All users with their grants, quotas and current use. The owner, number 0, comes first."""
    return users_json(database)


@router.post("/users", status_code=201, response_model=UserAnswer)
def create(wanted: UserRequest, database: DatabaseDep, request: Request) -> Any:
    """Create a user. A user is also created automatically when a token or a proxy first names it."""
    try:
        with database.write() as session:
            user = users.create_user(session, wanted.name, wanted.identity)
            answer = _user_json(user, users.used(session, user.id)[user.id])
    except BadName as error:
        raise Invalid(str(error), field="name", allowed=ALLOWED) from None
    except (users.NameTaken, users.TooManyUsers) as error:
        raise Conflict(str(error), field="name", allowed=ANOTHER) from None
    request.app.state.access.token_cache.forget()
    return answer


@router.patch("/users/{user_id}", response_model=UserAnswer)
def change(user_id: UserId, patch: UserPatch, database: DatabaseDep, request: Request) -> Any:
    """Change a user's name, identity, grant and quotas. Other server processes apply the change within 2 s."""
    changes = {field: getattr(patch, field) for field in patch.model_fields_set}
    if patch.name is None:
        changes.pop("name", None)
    try:
        with database.write() as session:
            user = users.change_user(session, user_id, changes)
            if user is None:
                raise NotFound(f"there is no user {user_id}", field="user_id")
            answer = _user_json(user, users.used(session, user_id)[user_id])
    except BadName as error:
        raise Invalid(str(error), field="name", allowed=ALLOWED) from None
    except users.NameTaken as error:
        raise Conflict(str(error), field="identity" if "identity" in str(error) else "name", allowed=ANOTHER) from None
    request.app.state.access.token_cache.forget()
    return answer


def users_json(database: Database) -> dict[str, Any]:
    """The UserList of all users."""
    with database.write() as session:  # creates the owner's row if it is missing
        known, used = users.list_users(session), users.used(session)
        return {"users": [_user_json(user, used.get(user.id)) for user in known]}


def me_json(database: Database, principal: Principal) -> dict[str, Any]:
    """The `Me` answer for this principal."""
    with database.read() as session:
        return _me_json(session, principal)


def _me_json(session: Session, principal: Principal) -> dict[str, Any]:
    number = principal.user_id
    user = None if number is None else session.get(User, number)
    if user is None and number == users.OWNER:
        user = User(id=users.OWNER, name=users.OWNER_NAME, may_change_all=False, created_at=0.0)  # the owner has no row yet
    answer = None if user is None else _user_json(user, users.used(session, user.id)[user.id])
    return {"token_id": principal.token_id, "token": principal.name, "scope": principal.scope, "user": answer}


def _user_json(user: User, used: dict[str, int] | None) -> dict[str, Any]:
    return {name: getattr(user, name) for name in FIELDS} | (used or {"queued": 0, "running": 0, "bytes": 0})
