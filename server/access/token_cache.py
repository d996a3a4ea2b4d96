"""A copy of the live tokens, at most CACHE_SECONDS old, so that a request is checked without asking the database.

A token that is created or revoked through this process counts here at once; other server processes learn of it when their copy is
that old. While the database is away the copy serves for STALE_SECONDS more; after that only the token of the settings is known,
and requests with another one get 503 and Retry-After.
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

from server.access.tokens import PREFIX, Principal, digest, live_principals
from server.access.users import OWNER, named_by_proxies, user_of_identity
from server.database.connection import Database
from server.database.models import Token
from server.errors import Unavailable

log = logging.getLogger("stablessm.server")

CACHE_SECONDS = 2.0
STALE_SECONDS = 60.0
WAIT_SECONDS = 2.0  # for a database that hangs, per request
USES_SECONDS = 30.0


class TokenCache:
    """The settings' token and the live tokens of the database; `token` None means that no token is asked for.

    Everything that it reads or writes goes through one thread, so a database that hangs costs one thread.
    """

    def __init__(self, database: Database, token: str | None) -> None:
        self.database = database
        self.owner = Principal(
            None, "settings" if token else "no token asked", "admin", digest(token) if token else "", user_id=OWNER
        )
        self.asks = token is not None
        self.loads = 0  # how often the database was asked
        self._live: dict[str, Principal] = {}
        self._by_id: dict[int, Principal] = {}
        self._identities: dict[str, tuple[int, str, bool]] = {}  # users that a proxy may name
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
        """Call `loader` in the thread whenever the tokens are read, with the same database session."""
        self._also_load.append(loader)

    def in_thread(self, call: Callable[[], None]) -> asyncio.Future[None]:
        return asyncio.get_running_loop().run_in_executor(self._thread, call)

    @property
    def ever_loaded(self) -> bool:
        return self._loaded != float("-inf")

    def forget(self) -> None:
        """The next question goes to the database: tokens have changed."""
        self._looked = float("-inf")

    async def by_secret(self, secret: str, *, though_stale: bool = False) -> Principal | None:
        """Whose secret this is. Raises Unavailable when the database has been away for too long to say.

        `though_stale`: then what was known last counts, since nothing can have been revoked in a database that is away.
        """
        given = digest(secret)
        if self.asks and hmac.compare_digest(given, self.owner.sha256):
            return self.owner
        if not secret.startswith(PREFIX):
            return None
        try:
            await self.refresh()
        except Unavailable:
            if not (though_stale and self.ever_loaded):
                raise
        found = self._live.get(given)
        return self.used(found if found is not None and hmac.compare_digest(found.sha256, given) else None)

    def by_id(self, token_id: int) -> Principal | None:
        """The live token of this number as far as the copy knows; 0 is the token of the settings."""
        return self._by_id.get(token_id) if token_id else self.owner

    async def for_user(self, principal: Principal, identity: str) -> Principal:
        """A proxy's principal, as the user whom the proxy calls so; made when first seen. Raises Unavailable."""
        await self.refresh()
        if identity not in self._identities:
            await asyncio.wait([self.in_thread(lambda: self._make_user(identity))], timeout=WAIT_SECONDS)
        if (known := self._identities.get(identity)) is None:
            raise Unavailable("the database does not answer, so users cannot be named", headers={"Retry-After": "2"})
        user_id, name, may_change_all = known
        return replace(principal, user_id=user_id, user=name, may_change_all=may_change_all, named=True)

    def with_user_of_token(self, session: Session, principal: Principal) -> Principal:
        """The principal, with the user whose its token is by now."""
        if principal.token_id is None or principal.named:
            return principal
        token = session.get(Token, principal.token_id)
        return replace(principal, user_id=token.user_id) if token is not None else principal

    def used(self, principal: Principal | None) -> Principal | None:
        """The principal, noted as used now; None for one that has expired."""
        if principal is None or not principal.is_live():
            return None
        if principal.token_id is not None:
            self._uses[principal.token_id] = time.time()
        return principal

    def write_uses(self) -> None:
        """Store when tokens were last used."""
        uses, self._uses = self._uses, {}
        if uses:
            with self.database.write() as session:
                for number, at in uses.items():
                    session.execute(update(Token).where(Token.id == number).values(last_used_at=at))

    async def refresh(self) -> None:
        """Look again when it is time. Raises Unavailable when nothing that is known is fresh enough."""
        deadline = (now := time.monotonic()) + WAIT_SECONDS
        while now < deadline:
            asking = self._loading is not None and not self._loading.done()
            if now - self._looked < CACHE_SECONDS and not (asking and now - self._loaded > STALE_SECONDS):
                break
            if not asking:
                self._looked = now  # before the question: what changes meanwhile makes us ask again
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
                log.warning("tokens cannot be read: %s", str(error).partition("\n")[0])
            self._away = True
            return
        self._away = False
        self.loads += 1
        self._live, self._by_id = live, {p.token_id: p for p in live.values() if p.token_id is not None}
        self._identities = identities
        self._loaded = time.monotonic()

    def _make_user(self, identity: str) -> None:
        try:
            with self.database.write() as session:
                user = user_of_identity(session, identity)
                self._identities[identity] = (user.id, user.name, user.may_change_all)
        except (SQLAlchemyError, ValueError) as error:
            log.warning("a user whom a proxy names cannot be made: %s", str(error).partition("\n")[0])

    async def _keep_writing_uses(self) -> None:
        while True:
            await asyncio.sleep(USES_SECONDS)
            if self._uses:
                await self.in_thread(self._try_write_uses)

    def _try_write_uses(self) -> None:
        try:
            self.write_uses()
        except SQLAlchemyError as error:
            log.warning("when tokens were last used cannot be written: %s", str(error).partition("\n")[0])
