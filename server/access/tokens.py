"""Tokens: secrets that give access to the service. Each token has a scope, may expire, and can be listed and revoked.

A secret is `ssm_` and 256 random bits. The database stores only the secret's SHA-256, which gives no access. The token from the
settings (STABLESSM_TOKEN, or the file in the data directory) is not in the database: this token belongs to the owner and always
has the scope admin.
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

from server.access.scopes import INGEST
from server.access.users import create_user, user_called
from server.database.models import Token, User

SCOPES = ("read", "submit", "admin")  # each scope includes the scopes before it; the scope ingest stands beside them
PREFIX = "ssm_"
SECRET = re.compile(PREFIX + r"[A-Za-z0-9_-]{43}")
MAX_LIVE = 1000
# columns for the first fields of a Principal, in the order of the fields
PRINCIPAL = (
    Token.id, Token.name, Token.scope, Token.sha256, Token.expires_at, Token.user_id, func.coalesce(User.name, ""),
    func.coalesce(User.may_change_all, false()), Token.names_users,
)  # fmt: skip


@dataclass(frozen=True)
class Principal:
    """Who makes a request: a token and its user.

    token_id: None for the token from the settings. user_id: None if the token has no user. named: True if a proxy's header
    names the user, for this request only.
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
        """True if the token allows requests that need this scope."""
        if self.scope == INGEST:
            return scope == INGEST
        return SCOPES.index(self.scope) >= SCOPES.index("submit" if scope == INGEST else scope)

    def is_live(self) -> bool:
        return self.expires_at is None or self.expires_at > time.time()


class TooManyTokens(ValueError):
    """There are MAX_LIVE tokens that are neither revoked nor expired."""


def digest(secret: str) -> str:
    """The SHA-256 of a secret. The database stores this hash instead of the secret. A fast hash is safe, because a secret has
    256 random bits."""
    return hashlib.sha256(secret.encode()).hexdigest()


def create_token(
    session: Session, name: str, scope: str, expires_at: float | None, *, user: str | None = None, names_users: bool = False
) -> tuple[Token, str]:
    """A new token and its secret, which cannot be read again. Raises TooManyTokens, TooManyUsers, and for the name of a new user
    BadName and NameTaken.

    user: name of the token's user, who is created if missing; None creates a user with the token's name. names_users: True for
    a proxy's token; the proxy then names the user in each request.
    """
    count = session.scalar(select(func.count()).select_from(_live().subquery()))
    if (count or 0) >= MAX_LIVE:
        raise TooManyTokens(f"there are already {count} live tokens")
    secret = PREFIX + secrets.token_urlsafe(32)
    token = Token(name=name, scope=scope, sha256=digest(secret), created_at=time.time(), expires_at=expires_at)
    token.names_users = names_users
    if not names_users:
        known = user_called(session, user) if user else None
        token.user_id = (known or create_user(session, user or name, numbered=user is None)).id
    session.add(token)
    session.flush()
    return token, secret


def revoke_token(session: Session, token_id: int) -> Token | None:
    """Revoke the token with this id and return it; None if there is no such token."""
    token = session.get(Token, token_id, with_for_update=True)
    if token is not None and token.revoked_at is None:
        token.revoked_at = time.time()
    return token


def list_tokens(session: Session, limit: int) -> list[Token]:
    """The tokens, newest first, including revoked and expired tokens."""
    return list(session.scalars(select(Token).order_by(Token.id.desc()).limit(limit)))


def live_principals(session: Session) -> dict[str, Principal]:
    """The principals of all valid tokens, keyed by the token's SHA-256."""
    chosen = _live().outerjoin(User, User.id == Token.user_id).with_only_columns(*PRINCIPAL)
    return {principal.sha256: principal for principal in (Principal(*row) for row in session.execute(chosen))}


def _live() -> Select[Any]:
    alive = or_(Token.expires_at.is_(None), Token.expires_at > time.time())
    return select(Token).where(Token.revoked_at.is_(None), alive)
