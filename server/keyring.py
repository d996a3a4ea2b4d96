"""Who holds a token, without asking the database at each request: a copy of the live tokens, at most CACHE_SECONDS old.

A token that is created or revoked through this process counts here at once; other server processes learn of it when their copy is
that old. Streams of a token that has ended are closed at the next look, so within two such spans. While the database is away the
copy serves on for STALE_SECONDS; after that only the token of the settings is known, and the others are told to try again.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from sqlalchemy import update
from sqlalchemy.exc import SQLAlchemyError

from server.db import Database
from server.errors import Unavailable
from server.models import Token
from server.tokens import PREFIX, Principal, digest, live_principals

log = logging.getLogger("stablessm.server")

CACHE_SECONDS = 2.0
STALE_SECONDS = 60.0
SESSION_SECONDS = 30 * 86_400
USES_SECONDS = 30.0


class Keyring:
    """The settings' token and the live tokens of the database; `token` None means that nobody is asked."""

    def __init__(self, database: Database, token: str | None) -> None:
        self.database = database
        self.owner = Principal(None, "settings" if token else "no token asked", "admin", digest(token) if token else "")
        self.asks = token is not None
        self.loads = 0  # how often the database was asked
        # sessions end when the settings' token changes; nothing in the database helps to forge one
        self._session_key = hashlib.sha256(f"stablessm session key {token}".encode()).digest()
        self._live: dict[str, Principal] = {}
        self._by_id: dict[int, Principal] = {}
        self._looked = self._loaded = float("-inf")
        self._away = False
        self._lock = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, "keyring")
        self._streams: dict[int, set[asyncio.Event]] = {}
        self._uses: dict[int, float] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._look_after())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await asyncio.get_running_loop().run_in_executor(self._thread, self._try_write_uses)
        self._thread.shutdown(wait=False)

    def forget(self) -> None:
        """The next question goes to the database: tokens have changed."""
        self._looked = float("-inf")

    async def by_secret(self, secret: str) -> Principal | None:
        """Whose secret this is. Raises Unavailable when the database has been away for too long to say."""
        given = digest(secret)
        if self.asks and hmac.compare_digest(given, self.owner.sha256):
            return self.owner
        if not secret.startswith(PREFIX):
            return None
        await self._refresh()
        found = self._live.get(given)
        return self._used(found if found is not None and hmac.compare_digest(found.sha256, given) else None)

    async def by_session(self, value: str) -> Principal | None:
        """Whose session cookie this is: one that was made here, of a token that still lives. Raises Unavailable."""
        number, _, rest = value.partition(".")
        until, _, _ = rest.partition(".")
        if not (_is_number(number) and _is_number(until)) or int(until) < time.time():
            return None
        if int(number):
            await self._refresh()
        principal = self._by_id.get(int(number)) if int(number) else self.owner
        if principal is None or not hmac.compare_digest(value.encode(), self._sign(principal, int(until)).encode()):
            return None
        return self._used(principal)

    def session(self, principal: Principal) -> str:
        """A cookie value for whoever has shown this token; knowing it does not give the token."""
        return self._sign(principal, int(time.time()) + SESSION_SECONDS)

    def streams_of(self, principal: Principal) -> int:
        return len(self._streams.get(principal.token_id or 0, ()))

    @contextmanager
    def stream(self, principal: Principal) -> Iterator[asyncio.Event]:
        """While a stream of this token is open; the event is set when the token has ended."""
        ended, number = asyncio.Event(), principal.token_id or 0
        self._streams.setdefault(number, set()).add(ended)
        try:
            yield ended
        finally:
            streams = self._streams[number]
            streams.discard(ended)
            if not streams:
                del self._streams[number]

    def write_uses(self) -> None:
        """Store when tokens were last used."""
        uses, self._uses = self._uses, {}
        if uses:
            with self.database.write() as session:
                for number, at in uses.items():
                    session.execute(update(Token).where(Token.id == number).values(last_used_at=at))

    def _used(self, principal: Principal | None) -> Principal | None:
        if principal is None or not principal.is_live():
            return None
        if principal.token_id is not None:
            self._uses[principal.token_id] = time.time()
        return principal

    def _sign(self, principal: Principal, until: int) -> str:
        text = f"{principal.token_id or 0}.{until}"
        return f"{text}.{hmac.new(self._session_key, f'{text}.{principal.sha256}'.encode(), hashlib.sha256).hexdigest()}"

    async def _refresh(self) -> None:
        if time.monotonic() - self._looked >= CACHE_SECONDS:
            async with self._lock:
                if time.monotonic() - self._looked >= CACHE_SECONDS:
                    self._looked = time.monotonic()  # before the question: what changes meanwhile makes us ask again
                    await asyncio.get_running_loop().run_in_executor(self._thread, self._load)
        if time.monotonic() - self._loaded > STALE_SECONDS:
            raise Unavailable("the database does not answer, so tokens cannot be checked", headers={"Retry-After": "2"})

    def _load(self) -> None:
        try:
            with self.database.read() as session:
                live = live_principals(session)
        except SQLAlchemyError as error:
            if not self._away:
                log.warning("tokens cannot be read: %s", str(error).partition("\n")[0])
            self._away = True
            return
        self._away = False
        self.loads += 1
        self._live, self._by_id = live, {p.token_id: p for p in live.values() if p.token_id is not None}
        self._loaded = time.monotonic()

    async def _look_after(self) -> None:
        written = time.monotonic()
        while True:
            await asyncio.sleep(CACHE_SECONDS / 2)
            if any(number for number in self._streams):
                try:
                    await self._refresh()
                except Unavailable:
                    continue  # nothing new reaches the streams either; they are judged when the database is back
                for number, streams in self._streams.items():
                    principal = self._by_id.get(number)
                    if number and (principal is None or not principal.is_live()):
                        for ended in streams:
                            ended.set()
            if self._uses and time.monotonic() - written > USES_SECONDS:
                written = time.monotonic()
                await asyncio.get_running_loop().run_in_executor(self._thread, self._try_write_uses)

    def _try_write_uses(self) -> None:
        try:
            self.write_uses()
        except SQLAlchemyError as error:
            log.warning("when tokens were last used cannot be written: %s", str(error).partition("\n")[0])


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 18
