"""Creates, lists and revokes tokens. Only administrators have access."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request

from server.access.names import ALLOWED, BadName
from server.access.token_cache import TokenCache
from server.access.tokens import MAX_LIVE, TooManyTokens, create_token, list_tokens, revoke_token
from server.access.users import MAX_USERS, NameTaken, TooManyUsers, user_names
from server.database.models import Token
from server.errors import Conflict, Invalid, NotFound
from server.http.api.deps import DatabaseDep
from server.http.schemas.access import NewToken, TokenAnswer, TokenList, TokenRequest
from server.http.schemas.runs import MAX_ID

router = APIRouter(prefix="/api/tokens", tags=["tokens"])

TokenId = Annotated[int, Path(ge=1, le=MAX_ID, description="Number of the token.", examples=[1])]
FIELDS = ("id", "name", "scope", "created_at", "expires_at", "revoked_at", "last_used_at", "user_id", "names_users")


@router.post("", status_code=201, response_model=NewToken)
def create(request: Request, wanted: TokenRequest, database: DatabaseDep) -> Any:
    """Create a token. Only this response contains its secret."""
    if wanted.expires_at is not None and wanted.expires_at <= time.time():
        raise Invalid("expires_at is in the past", field="expires_at", allowed="a later time, or null for never")
    try:
        with database.write() as session:
            token, secret = create_token(
                session, wanted.name, wanted.scope, wanted.expires_at, user=wanted.user, names_users=wanted.names_users
            )
            answer = token_json(token, user_names(session))
    except BadName as error:
        raise Invalid(str(error), field="name" if wanted.user is None else "user", allowed=ALLOWED) from None
    except NameTaken as error:
        raise Conflict(str(error), field="user", allowed="the name of a user, or a name that looks like no other") from None
    except TooManyUsers as error:
        raise Conflict(str(error), field="user", allowed=f"at most {MAX_USERS:,}") from None
    except TooManyTokens as error:
        raise Conflict(str(error), field="tokens", allowed=f"at most {MAX_LIVE:,}; revoke one first") from None
    _token_cache(request).forget()
    return answer | {"secret": secret}


@router.get("", response_model=TokenList)
def index(request: Request, database: DatabaseDep, limit: Annotated[int, Query(ge=1, le=1000)] = 1000) -> Any:
    """Tokens, newest first, including revoked and expired tokens."""
    return tokens_json(request, database, limit)


@router.delete("/{token_id}", response_model=TokenAnswer)
def revoke(request: Request, token_id: TokenId, database: DatabaseDep) -> Any:
    """Revoke a token. This server process refuses the token at once, and other processes refuse it within 2 s. Live streams
    that use the token end within 5 s."""
    with database.write() as session:
        token = revoke_token(session, token_id)
        if token is None:
            raise NotFound(f"there is no token {token_id}", field="token_id")
        answer = token_json(token, user_names(session))
    _token_cache(request).forget()
    return answer


def tokens_json(request: Request, database: DatabaseDep, limit: int = 1000) -> dict[str, Any]:
    """The TokenList, including times of last use that this process has not stored yet."""
    _token_cache(request).write_uses()
    with database.read() as session:
        names = user_names(session)
        return {"tokens": [token_json(token, names) for token in list_tokens(session, limit)]}


def token_json(token: Token, names: Mapping[int, str]) -> dict[str, Any]:
    """The TokenAnswer of a token. names: the users' names by user number."""
    expired = token.expires_at is not None and token.expires_at <= time.time()
    state = "revoked" if token.revoked_at is not None else "expired" if expired else "live"
    user = None if token.user_id is None else names.get(token.user_id)
    return {name: getattr(token, name) for name in FIELDS} | {"user": user, "state": state}


def _token_cache(request: Request) -> TokenCache:
    return request.app.state.access.token_cache  # type: ignore[no-any-return]
