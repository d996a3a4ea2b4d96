"""Users: whose a token is, under which name they are shown, what they may use. There are no passwords here.

Names are unique whatever their letters' case, since they say who did what. User 0 is the settings' token's, called "owner" until
it is named otherwise; it has a row as soon as anybody has one.
"""

from __future__ import annotations

import time
import unicodedata
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from server.database.fence import insert_into
from server.database.models import Run, Token, User

OWNER = 0
OWNER_NAME = "owner"
MAX_USERS = 10_000


class NameTaken(ValueError):
    """Another user has this name, or this identity."""


class TooManyUsers(ValueError):
    """There are MAX_USERS users."""


def ensure_owner(session: Session) -> None:
    """The row of user 0, made when it is first needed."""
    owner = {"id": OWNER, "name": OWNER_NAME, "created_at": time.time()}
    session.execute(insert_into(session, User).values(owner).on_conflict_do_nothing())


def create_user(session: Session, name: str, identity: str | None = None, *, numbered: bool = False) -> User:
    """A new user; `numbered`: where the name is taken, with the next number behind it. Raises NameTaken, TooManyUsers."""
    ensure_owner(session)
    taken = _names(session)
    if len(taken) >= MAX_USERS:
        raise TooManyUsers(f"there are {len(taken):,} users")
    wanted, number = name, 1
    while numbered and _folded(wanted) in taken:
        number += 1
        wanted = f"{name[:90]} {number}"
    if _folded(wanted) in taken:
        raise NameTaken(f"there is a user {wanted!r}")
    values = {"name": wanted, "identity": identity, "created_at": time.time()}
    made = session.scalar(insert_into(session, User).values(values).on_conflict_do_nothing().returning(User.id))
    if made is None:  # somebody else was faster
        raise NameTaken(f"there is a user {wanted!r}, or one of the identity {identity!r}")
    return session.get_one(User, made)


def user_called(session: Session, name: str) -> User | None:
    """The user of this name, whatever the case of its letters."""
    ensure_owner(session)
    number = _names(session).get(_folded(name))
    return session.get(User, number) if number is not None else None


def change_user(session: Session, user_id: int, changes: Mapping[str, Any]) -> User | None:
    """Set what is given of name, identity, may_change_all and quotas; None if there is no such user. Raises NameTaken."""
    ensure_owner(session)
    user = session.get(User, user_id, with_for_update=True)
    if user is None:
        return None
    if "name" in changes and _names(session).get(_folded(changes["name"]), user_id) != user_id:
        raise NameTaken(f"there is a user {changes['name']!r}")
    if identity := changes.get("identity"):
        other = session.scalar(select(User.id).where(User.identity == identity, User.id != user_id))
        if other is not None:
            raise NameTaken(f"the identity {identity!r} is another user's")
    for field, value in changes.items():
        setattr(user, field, value)
    session.flush()
    return user


def user_of_identity(session: Session, identity: str) -> User:
    """Whom a trusted proxy calls so; made when first seen, never one that exists already under that name. Raises TooManyUsers."""
    user = session.scalar(select(User).where(User.identity == identity))
    return user or create_user(session, identity[:100], identity, numbered=True)


def named_by_proxies(session: Session) -> dict[str, tuple[int, str, bool]]:
    """Number, name and may_change_all of every user with an identity, by that."""
    chosen = select(User.identity, User.id, User.name, User.may_change_all).where(User.identity.is_not(None))
    return {identity: (number, name, may) for identity, number, name, may in session.execute(chosen) if identity is not None}


def name_token(session: Session, token_id: int, name: str) -> User:
    """A user of this name for a token that is nobody's yet. Raises NameTaken."""
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
    """By user how many runs are queued and running, and what all of theirs occupy; of all users if none is named."""
    counted: list[Any] = [func.count().filter(Run.status == status) for status in ("queued", "running")]
    chosen: Select[Any] = select(Run.user_id, *counted, func.coalesce(func.sum(Run.bytes_stored), 0)).group_by(Run.user_id)
    chosen = chosen.where(Run.user_id.in_(user_ids) if user_ids else Run.user_id.is_not(None))
    nothing = {user_id: dict.fromkeys(("queued", "running", "bytes"), 0) for user_id in user_ids}
    rows = session.execute(chosen)
    found = {user: {"queued": queued, "running": running, "bytes": int(kept)} for user, queued, running, kept in rows}
    return nothing | found


def _names(session: Session) -> dict[str, int]:
    return {_folded(name): number for number, name in session.execute(select(User.id, User.name))}


def _folded(name: str) -> str:
    return unicodedata.normalize("NFKC", name).casefold()
