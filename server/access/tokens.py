"""Tokens: keys to the service with a scope each, created, listed, revoked, expiring.

A secret is `ssm_` and 256 random bits; the database keeps its SHA-256 only, so what is stored opens nothing. The token of the
settings (STABLESSM_TOKEN, or the file in the data directory) is not among them: it is the owner's, it is always admin.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Select, false, func, or_, select
from sqlalchemy.orm import Session

from server.access.users import create_user, user_called
from server.database.models import Token, User

SCOPES = ("read", "submit", "admin")  # each holds the one before
PREFIX = "ssm_"
SECRET = re.compile(PREFIX + r"[A-Za-z0-9_-]{43}")
MAX_LIVE = 1000
# the first fields of a Principal, in their order
PRINCIPAL = (
    Token.id, Token.name, Token.scope, Token.sha256, Token.expires_at, Token.user_id, func.coalesce(User.name, ""),
    func.coalesce(User.may_change_all, false()), Token.names_users,
)  # fmt: skip


@dataclass(frozen=True)
class Principal:
    """Who asks: a token by its number, None for the token of the settings; and whose it is, None where nobody was named.

    `named`: by a proxy's header, for this request alone.
    """

    token_id: int | None
    name: str
    scope: str
    sha256: str = field(default="", repr=False)
    expires_at: float | None = None
    user_id: int | None = None
    user: str = ""
    may_change_all: bool = False
    names_users: bool = False
    named: bool = False

    def may(self, scope: str) -> bool:
        return SCOPES.index(self.scope) >= SCOPES.index(scope)

    def is_live(self) -> bool:
        return self.expires_at is None or self.expires_at > time.time()


class TooManyTokens(ValueError):
    """There are MAX_LIVE tokens that are neither revoked nor expired."""


def digest(secret: str) -> str:
    """What is stored of a secret: 256 random bits need no slow hash."""
    return hashlib.sha256(secret.encode()).hexdigest()


def create_token(
    session: Session, name: str, scope: str, expires_at: float | None, *, user: str | None = None, names_users: bool = False
) -> tuple[Token, str]:
    """A new token and its secret, which is known here and now only. Raises TooManyTokens, TooManyUsers.

    It belongs to the user of that name, made if there is none; with no name to a new user named like the token. With
    `names_users` it is a proxy's, and each request that shows it says for whom.
    """
    count = session.scalar(select(func.count()).select_from(_live().subquery()))
    if (count or 0) >= MAX_LIVE:
        raise TooManyTokens(f"there are {count} tokens in use")
    secret = PREFIX + secrets.token_urlsafe(32)
    token = Token(name=name, scope=scope, sha256=digest(secret), created_at=time.time(), expires_at=expires_at)
    token.names_users = names_users
    if not names_users:
        known = user_called(session, user) if user else None
        token.user_id = (known or create_user(session, user or name, numbered=True)).id
    session.add(token)
    session.flush()
    return token, secret


def revoke_token(session: Session, token_id: int) -> Token | None:
    """The token, revoked now or before; None if there is none with this number."""
    token = session.get(Token, token_id, with_for_update=True)
    if token is not None and token.revoked_at is None:
        token.revoked_at = time.time()
    return token


def list_tokens(session: Session, limit: int) -> list[Token]:
    """The newest tokens first, revoked and expired ones too."""
    return list(session.scalars(select(Token).order_by(Token.id.desc()).limit(limit)))


def live_principals(session: Session) -> dict[str, Principal]:
    """The principals of all tokens in use, by the token's SHA-256."""
    chosen = _live().outerjoin(User, User.id == Token.user_id).with_only_columns(*PRINCIPAL)
    return {principal.sha256: principal for principal in (Principal(*row) for row in session.execute(chosen))}


def _live() -> Select[Any]:
    alive = or_(Token.expires_at.is_(None), Token.expires_at > time.time())
    return select(Token).where(Token.revoked_at.is_(None), alive)
