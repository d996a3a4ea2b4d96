"""Browser sessions: the browser gets a signed cookie instead of the token itself. A live stream ends when its session ends.

Each server process remembers all signed-out sessions whose cookies have not expired, so copies of these cookies are refused. A
sign-out takes effect at once in the process that handles it, and in other processes at their next check. Streams that use an
ended token or session are closed at the next check, that is, within twice CACHE_SECONDS.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import delete, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from server.access.token_cache import CACHE_SECONDS, WAIT_SECONDS, TokenCache
from server.access.tokens import Principal, digest
from server.clock_jumps import ClockJumps
from server.database.fence import insert_into
from server.database.models import EndedSession
from server.errors import Unavailable

log = logging.getLogger("stablessm.server")

SESSION_SECONDS = 30 * 86_400
MICROSECONDS = 1_000_000
ID_OVERLAP = 1000  # number of recent ids that each check reads again, because rows may be committed in a different order


class Sessions:
    """The sessions of one server process. token: the token from the settings; if this token changes, every session ends."""

    def __init__(self, token_cache: TokenCache, token: str | None, clock: ClockJumps | None = None) -> None:
        self.token_cache, self._clock = token_cache, clock or ClockJumps()
        # the key is not in the database, so the contents of the database do not suffice to forge a session
        self._key = hashlib.sha256(f"stablessm session key {token}".encode()).digest()
        self._ended: dict[str, float] = {}  # digest of a signed-out cookie -> expiry time of this cookie
        self._ended_seen = 0
        self._ended_unsaved: dict[str, float] = {}
        self._streams: dict[int, dict[asyncio.Event, str]] = {}  # token id -> {event of a stream: digest of its cookie}
        self._task: asyncio.Task[None] | None = None
        token_cache.load_also(self._load_ended)

    def start(self) -> None:
        self._task = asyncio.create_task(self._look_after())

    async def close(self) -> None:
        """Stop, and store pending sign-outs. Call this before closing the token cache, because this method uses the cache's
        thread."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self.token_cache.in_thread(self._try_write_ended)

    def new_cookie(self, principal: Principal) -> str:
        """A new cookie value for a browser that signed in with this token. The value does not reveal the token."""
        return self._sign(principal, int((time.time() + SESSION_SECONDS) * MICROSECONDS))

    async def by_cookie(self, value: str) -> Principal | None:
        """The principal with this session cookie; None if the cookie is forged, expired or signed out, or if its token is no
        longer valid.

        Raises Unavailable.
        """
        number, _, rest = value.partition(".")
        until, _, _ = rest.partition(".")
        if not (_is_number(number) and _is_number(until)) or _seconds(until) < time.time():
            return None
        try:
            await self.token_cache.refresh()
        except Unavailable:
            # the owner's cookie still works: this process knows all earlier sign-outs, and other processes cannot store new
            # sign-outs without the database
            if int(number) or not self.token_cache.ever_loaded:
                raise
        principal = self.token_cache.by_id(int(number))
        if principal is None or not hmac.compare_digest(value.encode(), self._sign(principal, int(until)).encode()):
            return None
        return self.token_cache.used(principal) if digest(value) not in self._ended else None

    async def end(self, value: str) -> None:
        """Sign out every copy of this cookie: in this process at once, in other processes at their next check. Raises
        Unavailable.

        While the database is unavailable, the sign-out waits in memory.
        """
        if await self.by_cookie(value) is None:
            return
        name = digest(value)
        self._ended[name] = self._ended_unsaved[name] = _seconds(value.split(".")[1])
        await asyncio.wait([self.token_cache.in_thread(self._try_write_ended)], timeout=WAIT_SECONDS)

    def open_streams(self, principal: Principal) -> int:
        return len(self._streams.get(principal.token_id or 0, ()))

    @contextmanager
    def stream(self, principal: Principal, cookie: str | None) -> Iterator[asyncio.Event]:
        """Register an open stream. Yields an event that is set when the token or the browser session ends."""
        ended, number = asyncio.Event(), principal.token_id or 0
        self._streams.setdefault(number, {})[ended] = digest(cookie) if cookie else ""
        try:
            yield ended
        finally:
            streams = self._streams[number]
            del streams[ended]
            if not streams:
                del self._streams[number]

    def _sign(self, principal: Principal, until: int) -> str:
        text = f"{principal.token_id or 0}.{until}"
        return f"{text}.{hmac.new(self._key, f'{text}.{principal.sha256}'.encode(), hashlib.sha256).hexdigest()}"

    def _load_ended(self, session: Session) -> None:
        after, now = self._ended_seen - ID_OVERLAP, time.time()
        chosen = select(EndedSession.id, EndedSession.sha256, EndedSession.until).where(EndedSession.id > after)
        ended = session.execute(chosen.where(EndedSession.until > now)).all()
        self._ended.update((sha256, until) for _, sha256, until in ended)
        self._ended_seen = max([self._ended_seen, *(number for number, _, _ in ended)])
        if self._clock.jumped():  # the cookies that seem to have expired would be valid again when the clock is set back
            return
        for sha256 in [sha256 for sha256, until in list(self._ended.items()) if until < now]:
            del self._ended[sha256]

    async def _look_after(self) -> None:
        while True:
            await asyncio.sleep(CACHE_SECONDS / 2)
            if self._ended_unsaved:
                await self.token_cache.in_thread(self._try_write_ended)
            if self._streams:
                try:
                    await self.token_cache.refresh()
                except Unavailable:
                    continue  # streams get no new data now; check them when the database answers again
                self._end_streams()

    def _end_streams(self) -> None:
        for number, streams in self._streams.items():
            principal = self.token_cache.by_id(number)
            gone = principal is None or not principal.is_live()
            for ended, session in streams.items():
                if gone or session in self._ended:
                    ended.set()

    def _try_write_ended(self) -> None:
        waiting = dict(self._ended_unsaved)
        if not waiting:
            return
        try:
            with self.token_cache.database.write() as session:
                if not self._clock.jumped():
                    session.execute(delete(EndedSession).where(EndedSession.until < time.time()))
                rows = [{"sha256": sha256, "until": until} for sha256, until in waiting.items()]
                session.execute(insert_into(session, EndedSession).on_conflict_do_nothing(index_elements=["sha256"]), rows)
        except SQLAlchemyError as error:
            log.warning("cannot store %d sign-outs yet: %s", len(waiting), str(error).partition("\n")[0])
            return
        for sha256 in waiting:
            del self._ended_unsaved[sha256]


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 18


def _seconds(until: str) -> float:
    """A cookie's expiry in epoch seconds. New cookies give the expiry in microseconds, so that no two cookies are equal; old
    cookies give it in seconds."""
    return int(until) if len(until) < 12 else int(until) / MICROSECONDS
