"""A cache of the valid tokens, at most CACHE_SECONDS old. It lets the server check a request without querying the database.

Creating or revoking a token takes effect at once in the server process that handles the request, and in other server processes
when they reload their cache. While the database is unavailable, the cache stays valid for STALE_SECONDS. After this time, only
the token from the settings is accepted; a request with any other token gets status 503 and a Retry-After header.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from sqlalchemy import update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from server.access.names import ALLOWED, BadName
from server.access.tokens import PREFIX, Principal, digest, live_principals
from server.access.users import OWNER, NameTaken, TooManyUsers, named_by_proxies, user_of_identity
from server.database.connection import Database
from server.database.models import Token
from server.errors import Forbidden, Unavailable

log = logging.getLogger("stablessm.server")

CACHE_SECONDS = 2.0
STALE_SECONDS = 60.0
WAIT_SECONDS = 2.0  # maximum time that a request waits for the database, in seconds
USES_SECONDS = 30.0


class TokenCache:
    """The token from the settings and the valid tokens in the database. token: None if the service requires no token.
    proxy_users: how many users may have an identity before proxies cannot add further users.

    One thread does all reading and writing, so a database that hangs blocks only this thread.
    """

    def __init__(self, database: Database, token: str | None, *, proxy_users: int = 1000) -> None:
        self.database, self._proxy_users = database, proxy_users
        self.owner = Principal(
            None, "settings" if token else "no token asked", "admin", digest(token) if token else "", user_id=OWNER
        )
        self.asks = token is not None
        self.loads = 0  # number of times that the tokens were read from the database
        self._live: dict[str, Principal] = {}
        self._by_id: dict[int, Principal] = {}
        # identity that a proxy may name -> (user id, name, may_change_all)
        self._identities: dict[str, tuple[int, str, bool]] = {}
        self._looked = self._loaded = float("-inf")
        self._away = False
        self._loading: asyncio.Future[None] | None = None
        self._also_load: list[Callable[[Session], None]] = []
        self._thread = ThreadPoolExecutor(1, "token-cache")
        self._uses: dict[int, float] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep_writing_uses())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self.in_thread(self._try_write_uses)
        self._thread.shutdown(wait=False)

    def load_also(self, loader: Callable[[Session], None]) -> None:
        """Also call `loader` whenever the tokens are read, in the same thread and database session."""
        self._also_load.append(loader)

    def in_thread(self, call: Callable[[], None]) -> asyncio.Future[None]:
        return asyncio.get_running_loop().run_in_executor(self._thread, call)

    @property
    def ever_loaded(self) -> bool:
        return self._loaded != float("-inf")

    def forget(self) -> None:
        """Make the next request reload the tokens from the database, because they have changed."""
        self._looked = float("-inf")

    async def by_secret(self, secret: str, *, allow_stale: bool = False) -> Principal | None:
        """The principal with this secret; None if the secret is unknown. Raises Unavailable if the cache is too old.

        allow_stale: use the last known tokens regardless of their age; nobody can revoke a token while the database is
        unavailable.
        """
        given = digest(secret)
        if self.asks and hmac.compare_digest(given, self.owner.sha256):
            return self.owner
        if not secret.startswith(PREFIX):
            return None
        try:
            await self.refresh()
        except Unavailable:
            if not (allow_stale and self.ever_loaded):
                raise
        found = self._live.get(given)
        return self.used(found if found is not None and hmac.compare_digest(found.sha256, given) else None)

    def by_id(self, token_id: int) -> Principal | None:
        """The principal of the valid token with this id, from the cache; id 0 means the token from the settings."""
        return self._by_id.get(token_id) if token_id else self.owner

    async def for_user(self, principal: Principal, identity: str) -> Principal:
        """The principal of a proxy that acts for the user with this identity. The first request creates the user. Raises
        Unavailable, and Forbidden if the user cannot be created."""
        await self.refresh()
        if identity not in self._identities:
            making = self.in_thread(lambda: self._make_user(identity))
            await asyncio.wait([making], timeout=WAIT_SECONDS)
            if making.done():
                making.result()
        if (known := self._identities.get(identity)) is None:
            raise Unavailable("the database does not answer, so the user is unknown", headers={"Retry-After": "2"})
        user_id, name, may_change_all = known
        return replace(principal, user_id=user_id, user=name, may_change_all=may_change_all, named=True)

    def with_user_of_token(self, session: Session, principal: Principal) -> Principal:
        """The principal, with the current owner of the principal's token as the user."""
        if principal.token_id is None or principal.named:
            return principal
        token = session.get(Token, principal.token_id)
        return replace(principal, user_id=token.user_id) if token is not None else principal

    def used(self, principal: Principal | None) -> Principal | None:
        """Record the current time as the last use of the principal's token, and return the principal; None if the token has
        expired."""
        if principal is None or not principal.is_live():
            return None
        if principal.token_id is not None:
            self._uses[principal.token_id] = time.time()
        return principal

    def write_uses(self) -> None:
        """Store the time of each token's last use."""
        uses, self._uses = self._uses, {}
        if uses:
            with self.database.write() as session:
                for number, at in uses.items():
                    session.execute(update(Token).where(Token.id == number).values(last_used_at=at))

    async def refresh(self) -> None:
        """Reload the tokens if the cache is older than CACHE_SECONDS. Raises Unavailable if the cache is older than
        STALE_SECONDS."""
        deadline = (now := time.monotonic()) + WAIT_SECONDS
        while now < deadline:
            asking = self._loading is not None and not self._loading.done()
            if now - self._looked < CACHE_SECONDS and not (asking and now - self._loaded > STALE_SECONDS):
                break
            if not asking:
                self._looked = now  # set before the query, so that `forget` triggers a reload if a token changes meanwhile
                self._loading = self.in_thread(self._load)
            assert self._loading is not None
            await asyncio.wait([self._loading], timeout=deadline - now)
            now = time.monotonic()
        if now - self._loaded > STALE_SECONDS:
            raise Unavailable("the database does not answer, so tokens cannot be checked", headers={"Retry-After": "2"})

    def _load(self) -> None:
        try:
            with self.database.read() as session:
                live = live_principals(session)
                identities = named_by_proxies(session)
                for loader in self._also_load:
                    loader(session)
        except SQLAlchemyError as error:
            if not self._away:
                log.warning("cannot read the tokens: %s", str(error).partition("\n")[0])
            self._away = True
            return
        self._away = False
        self.loads += 1
        self._live, self._by_id = live, {p.token_id: p for p in live.values() if p.token_id is not None}
        self._identities = identities
        self._loaded = time.monotonic()

    def _make_user(self, identity: str) -> None:
        """Raises Forbidden."""
        try:
            with self.database.write() as session:
                user = user_of_identity(session, identity, self._proxy_users)
                self._identities[identity] = (user.id, user.name, user.may_change_all)
        except (BadName, NameTaken) as error:
            raise Forbidden(
                f"the proxy names a user that cannot be created: {error}", field="identity", allowed=ALLOWED
            ) from None
        except TooManyUsers as error:
            allowed = f"the identities of existing users; at most {self._proxy_users:,} users (STABLESSM_PROXY_USERS)"
            raise Forbidden(str(error), field="identity", allowed=allowed) from None
        except (SQLAlchemyError, ValueError) as error:
            log.warning("cannot create the user that a proxy names: %s", str(error).partition("\n")[0])

    async def _keep_writing_uses(self) -> None:
        while True:
            await asyncio.sleep(USES_SECONDS)
            if self._uses:
                await self.in_thread(self._try_write_uses)

    def _try_write_uses(self) -> None:
        try:
            self.write_uses()
        except SQLAlchemyError as error:
            log.warning("cannot store when tokens were last used: %s", str(error).partition("\n")[0])
