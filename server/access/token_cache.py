"""Who holds a token, without asking the database at each request: a copy of the live tokens, at most CACHE_SECONDS old.

A token that is created or revoked through this process counts here at once; other server processes learn of it when their copy is
that old. So it is with sessions that are signed out: each process knows all of them whose cookie would still be good, so no copy
of the cookie opens anything. Streams of a token or session that has ended are closed at the next look, so within two such spans.
While the database is away the copy serves on for STALE_SECONDS; after that only the token of the settings is known, and the
others are told to try again.
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

from sqlalchemy import delete, select, update
from sqlalchemy.exc import SQLAlchemyError

from server.access.tokens import PREFIX, Principal, digest, live_principals
from server.database.connection import Database
from server.database.fence import insert_into
from server.database.models import EndedSession, Token
from server.errors import Unavailable

log = logging.getLogger("stablessm.server")

CACHE_SECONDS = 2.0
STALE_SECONDS = 60.0
WAIT_SECONDS = 2.0  # for a database that hangs, per request
SESSION_SECONDS = 30 * 86_400
USES_SECONDS = 30.0
MICROSECONDS = 1_000_000
ID_OVERLAP = 1000  # an id that was given out earlier may be committed later


class TokenCache:
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
        self._loading: asyncio.Future[None] | None = None
        self._thread = ThreadPoolExecutor(1, "token_cache")
        self._streams: dict[int, dict[asyncio.Event, str]] = {}  # by token, each with its session
        self._uses: dict[int, float] = {}
        self._ended: dict[str, float] = {}  # sessions that were signed out, and when their cookies end by themselves
        self._ended_seen = 0
        self._ended_unsaved: dict[str, float] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._look_after())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        for write in (self._try_write_ended, self._try_write_uses):
            await asyncio.get_running_loop().run_in_executor(self._thread, write)
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
        """Whose session cookie this is: made here, not signed out, of a token that still lives. Raises Unavailable."""
        number, _, rest = value.partition(".")
        until, _, _ = rest.partition(".")
        if not (_is_number(number) and _is_number(until)) or _seconds(until) < time.time():
            return None
        try:
            await self._refresh()
        except Unavailable:
            # what was signed out before is known all the same, and nothing more can be stored as long as the database is away
            if int(number) or self._loaded == float("-inf"):
                raise
        principal = self._by_id.get(int(number)) if int(number) else self.owner
        if principal is None or not hmac.compare_digest(value.encode(), self._sign(principal, int(until)).encode()):
            return None
        return self._used(principal) if digest(value) not in self._ended else None

    def session(self, principal: Principal) -> str:
        """A cookie value for whoever has shown this token, another one each time; knowing it does not give the token."""
        return self._sign(principal, int((time.time() + SESSION_SECONDS) * MICROSECONDS))

    async def end_session(self, value: str) -> None:
        """Sign out, for every copy of this cookie: here at once, elsewhere when others look again. Raises Unavailable.

        While the database is away it waits in memory, and is stored as soon as the database is back.
        """
        if await self.by_session(value) is None:
            return
        name = digest(value)
        self._ended[name] = self._ended_unsaved[name] = _seconds(value.split(".")[1])
        writing = asyncio.get_running_loop().run_in_executor(self._thread, self._try_write_ended)
        await asyncio.wait([writing], timeout=WAIT_SECONDS)

    def streams_of(self, principal: Principal) -> int:
        return len(self._streams.get(principal.token_id or 0, ()))

    @contextmanager
    def stream(self, principal: Principal, cookie: str | None) -> Iterator[asyncio.Event]:
        """While a stream of this token, and this session if any, is open; the event is set when one of them has ended."""
        ended, number = asyncio.Event(), principal.token_id or 0
        self._streams.setdefault(number, {})[ended] = digest(cookie) if cookie else ""
        try:
            yield ended
        finally:
            streams = self._streams[number]
            del streams[ended]
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
        """Look again when it is time. Raises Unavailable when nothing that is known is fresh enough."""
        deadline = (now := time.monotonic()) + WAIT_SECONDS
        while now < deadline:
            asking = self._loading is not None and not self._loading.done()
            if now - self._looked < CACHE_SECONDS and not (asking and now - self._loaded > STALE_SECONDS):
                break
            if not asking:
                self._looked = now  # before the question: what changes meanwhile makes us ask again
                self._loading = asyncio.get_running_loop().run_in_executor(self._thread, self._load)
            assert self._loading is not None
            await asyncio.wait([self._loading], timeout=deadline - now)
            now = time.monotonic()
        if now - self._loaded > STALE_SECONDS:
            raise Unavailable("the database does not answer, so tokens cannot be checked", headers={"Retry-After": "2"})

    def _load(self) -> None:
        after, now = self._ended_seen - ID_OVERLAP, time.time()
        chosen = select(EndedSession.id, EndedSession.sha256, EndedSession.until).where(EndedSession.id > after)
        try:
            with self.database.read() as session:
                live = live_principals(session)
                ended = session.execute(chosen.where(EndedSession.until > now)).all()
        except SQLAlchemyError as error:
            if not self._away:
                log.warning("tokens cannot be read: %s", str(error).partition("\n")[0])
            self._away = True
            return
        self._away = False
        self.loads += 1
        self._live, self._by_id = live, {p.token_id: p for p in live.values() if p.token_id is not None}
        self._ended.update((sha256, until) for _, sha256, until in ended)
        self._ended_seen = max([self._ended_seen, *(number for number, _, _ in ended)])
        for sha256 in [sha256 for sha256, until in list(self._ended.items()) if until < now]:
            del self._ended[sha256]
        self._loaded = time.monotonic()

    async def _look_after(self) -> None:
        written = time.monotonic()
        while True:
            await asyncio.sleep(CACHE_SECONDS / 2)
            if self._ended_unsaved:
                await asyncio.get_running_loop().run_in_executor(self._thread, self._try_write_ended)
            if self._streams:
                try:
                    await self._refresh()
                except Unavailable:
                    continue  # nothing new reaches the streams either; they are judged when the database is back
                for number, streams in self._streams.items():
                    principal = self._by_id.get(number) if number else self.owner
                    gone = principal is None or not principal.is_live()
                    for ended, session in streams.items():
                        if gone or session in self._ended:
                            ended.set()
            if self._uses and time.monotonic() - written > USES_SECONDS:
                written = time.monotonic()
                await asyncio.get_running_loop().run_in_executor(self._thread, self._try_write_uses)

    def _try_write_uses(self) -> None:
        try:
            self.write_uses()
        except SQLAlchemyError as error:
            log.warning("when tokens were last used cannot be written: %s", str(error).partition("\n")[0])

    def _try_write_ended(self) -> None:
        waiting = dict(self._ended_unsaved)
        if not waiting:
            return
        try:
            with self.database.write() as session:
                session.execute(delete(EndedSession).where(EndedSession.until < time.time()))
                rows = [{"sha256": sha256, "until": until} for sha256, until in waiting.items()]
                session.execute(insert_into(session, EndedSession).on_conflict_do_nothing(index_elements=["sha256"]), rows)
        except SQLAlchemyError as error:
            log.warning("%d sign-outs cannot be stored yet: %s", len(waiting), str(error).partition("\n")[0])
            return
        for sha256 in waiting:
            del self._ended_unsaved[sha256]


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 18


def _seconds(until: str) -> float:
    """When a cookie ends. It says so in microseconds, so that no two are alike; those of older releases say it in seconds."""
    return int(until) if len(until) < 12 else int(until) / MICROSECONDS
