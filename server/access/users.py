"""Users: the owners of tokens, with a name, rights and quotas. Users have no passwords.

Names identify who did what, so no two names are equal or look alike, regardless of case (names.py). User 0 owns the token from
the settings and is called "owner" until somebody changes this name. The row of user 0 is created when it is first needed.
"""

from __future__ import annotations

import time
import unicodedata
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from server.access.names import check_name, looks
from server.database.fence import insert_into
from server.database.models import Run, Token, User
from stablessm_core.telemetry.statuses import OPEN

OWNER = 0
OWNER_NAME = "owner"
MAX_USERS = 10_000


class NameTaken(ValueError):
    """Another user already has this name or this identity."""


class TooManyUsers(ValueError):
    """There are already MAX_USERS users, or a proxy has named as many new users as the settings allow."""


def ensure_owner(session: Session) -> None:
    """Create the row of user 0 if there is none."""
    owner = {"id": OWNER, "name": OWNER_NAME, "created_at": time.time()}
    session.execute(insert_into(session, User).values(owner).on_conflict_do_nothing())


def create_user(session: Session, name: str, identity: str | None = None, *, numbered: bool = False) -> User:
    """A new user. numbered: append the next free number if the name is taken, or is ASCII and looks like a taken name. Raises
    BadName, NameTaken, TooManyUsers."""
    ensure_owner(session)
    name = check_name(name)
    names = _names(session)
    if len(names) >= MAX_USERS:
        raise TooManyUsers(f"there are already {len(names):,} users")
    taken = {look: known for known in names for look in looks(known)}
    wanted, number = name, 1
    while numbered and (like := _like(wanted, taken)) is not None and (name.isascii() or _folded(like) == _folded(wanted)):
        number += 1
        wanted = f"{name[:90]} {number}"
    _check_free(wanted, taken)
    values = {"name": wanted, "identity": identity, "created_at": time.time()}
    made = session.scalar(insert_into(session, User).values(values).on_conflict_do_nothing().returning(User.id))
    if made is None:  # another transaction has created the user
        raise NameTaken(f"there is already a user {wanted!r} or a user with the identity {identity!r}")
    return session.get_one(User, made)


def user_called(session: Session, name: str) -> User | None:
    """The user with this name, regardless of case; None if there is none."""
    ensure_owner(session)
    wanted = _folded(name)
    for known, number in _names(session).items():
        if _folded(known) == wanted:
            return session.get(User, number)
    return None


def change_user(session: Session, user_id: int, changes: Mapping[str, Any]) -> User | None:
    """Change the name, the identity, may_change_all or the quotas of a user, and return the user; None if there is no such
    user. Raises BadName, NameTaken."""
    ensure_owner(session)
    user = session.get(User, user_id, with_for_update=True)
    if user is None:
        return None
    if "name" in changes:
        changes = {**changes, "name": check_name(changes["name"])}
        others = [name for name, number in _names(session).items() if number != user_id]
        _check_free(changes["name"], {look: name for name in others for look in looks(name)})
    if identity := changes.get("identity"):
        other = session.scalar(select(User.id).where(User.identity == identity, User.id != user_id))
        if other is not None:
            raise NameTaken(f"the identity {identity!r} belongs to another user")
    for field, value in changes.items():
        setattr(user, field, value)
    session.flush()
    return user


def user_of_identity(session: Session, identity: str, limit: int) -> User:
    """The user with this proxy identity. The first request creates the user, under a name that no other user has, unless
    `limit` users already have an identity. Raises BadName, TooManyUsers."""
    user = session.scalar(select(User).where(User.identity == identity))
    if user is not None:
        return user
    count = session.scalar(select(func.count()).where(User.identity.is_not(None))) or 0
    if count >= limit:
        raise TooManyUsers(f"there are already {count:,} users with an identity, so a proxy cannot add {identity[:100]!r}")
    return create_user(session, identity[:100], identity, numbered=True)


def named_by_proxies(session: Session) -> dict[str, tuple[int, str, bool]]:
    """(id, name, may_change_all) of every user with a proxy identity, keyed by that identity."""
    chosen = select(User.identity, User.id, User.name, User.may_change_all).where(User.identity.is_not(None))
    return {identity: (number, name, may) for identity, number, name, may in session.execute(chosen) if identity is not None}


def name_token(session: Session, token_id: int, name: str) -> User:
    """Create a user with this name as the owner of a token that has no user yet. Raises BadName, NameTaken."""
    user = create_user(session, name)
    session.get_one(Token, token_id).user_id = user.id
    return user


def list_users(session: Session) -> list[User]:
    """All users, the owner first."""
    ensure_owner(session)
    return list(session.scalars(select(User).order_by(User.id)))


def user_names(session: Session) -> dict[int, str]:
    return {row.id: row.name for row in session.execute(select(User.id, User.name))}


def used(session: Session, *user_ids: int) -> dict[int, dict[str, int]]:
    """The resources that each user uses: queued runs, running runs (reported runs do not count), and the bytes of all runs.
    user_ids: by default the ids of all users."""
    counted: list[Any] = [func.count().filter(Run.status == status, Run.kind == "trained") for status in OPEN]
    chosen: Select[Any] = select(Run.user_id, *counted, func.coalesce(func.sum(Run.bytes_stored), 0)).group_by(Run.user_id)
    chosen = chosen.where(Run.user_id.in_(user_ids) if user_ids else Run.user_id.is_not(None))
    nothing = {user_id: dict.fromkeys((*OPEN, "bytes"), 0) for user_id in user_ids}
    rows = session.execute(chosen)
    found = {user: {"queued": queued, "running": running, "bytes": int(kept)} for user, queued, running, kept in rows}
    return nothing | found


def _names(session: Session) -> dict[str, int]:
    return {name: number for number, name in session.execute(select(User.id, User.name))}


def _check_free(name: str, taken: Mapping[str, str]) -> None:
    if (like := _like(name, taken)) is not None:
        look = "" if _folded(like) == _folded(name) else f", which looks like {name!r}"
        raise NameTaken(f"there is already a user {like!r}{look}")


def _like(name: str, taken: Mapping[str, str]) -> str | None:
    """The name of a user that equals this name or looks like it. taken: the names of other users by every text of `looks`."""
    return next((taken[look] for look in looks(name) if look in taken), None)


def _folded(name: str) -> str:
    return unicodedata.normalize("NFKC", name).casefold()
