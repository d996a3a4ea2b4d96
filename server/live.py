"""The live stream: one hub per process tails each run that has viewers, encodes every event once, and feeds all viewers.

A viewer is a cursor into its run's ring of recent events. Who reconnects (Last-Event-ID) is first given what it missed from the
database; who falls behind the ring, or was away too long, gets one `reset` and refetches. A viewer that stops reading waits
in its own socket and holds up nobody.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from server.db import Database
from server.events import Event, read_events, status_now
from server.models import Run

T = TypeVar("T")
Position = tuple[int, int]  # event number, and how many frames of the next event have been seen

log = logging.getLogger("stablessm.live")

RING_EVENTS = 256
RING_BYTES = 16 << 20
REPLAY_EVENTS = 2000
READ_EVENTS = 64
PING_SECONDS = 15.0
FALLBACK_SECONDS = 2.0
MAX_VIEWERS = 1000


@dataclass(eq=False)
class Channel:
    """Recent events of one run that somebody watches."""

    seq: int  # newest event known here
    ring: deque[Event] = field(default_factory=deque)
    size: int = 0
    viewers: int = 0
    gone: bool = False
    start: int = -1  # the ring holds every event after this one
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def append(self, events: Iterable[Event], seq: int) -> None:
        """Add events; `seq` is the number up to which they go (what was taken back leaves gaps)."""
        for event in events:
            self.ring.append(event)
            self.size += event.size
        self.seq = seq
        while len(self.ring) > RING_EVENTS or (self.size > RING_BYTES and len(self.ring) > 1):
            oldest = self.ring.popleft()
            self.size -= oldest.size
            self.start = oldest.seq
        self.wake()

    def after(self, cursor: int) -> list[Event] | None:
        """Events after `cursor`, or None when the ring has lost some of them."""
        return None if cursor < self.start else [e for e in self.ring if e.seq > cursor]

    def wake(self) -> None:
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()


class Hub:
    """All channels of this process and the one task that fills them."""

    def __init__(self, database: Database, *, fallback_seconds: float = FALLBACK_SECONDS) -> None:
        self.database, self.fallback_seconds = database, fallback_seconds
        self.channels: dict[int, Channel] = {}
        self.viewers = self.resets = self.failures = 0
        self._woken = asyncio.Event()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None
        # threads of its own: a busy API must not hold up the live view
        self._threads = ThreadPoolExecutor(2, "live")

    def start(self) -> None:
        self._task = asyncio.create_task(self._tail())

    def stop(self) -> None:
        """Ends every stream soon; the browser reconnects by itself."""
        self._stopping = True
        self._woken.set()
        for channel in self.channels.values():
            channel.wake()

    async def close(self) -> None:
        self.stop()
        if self._task is not None:
            await self._task
        self._threads.shutdown(wait=False, cancel_futures=True)

    def wake(self) -> None:
        """Something may be new; costs one small query if nothing is."""
        self._woken.set()

    @property
    def watched(self) -> bool:
        return bool(self.channels)

    async def stream(self, run_id: int, seq: int, after: Position | None, wanted: frozenset[str] | None) -> AsyncIterator[bytes]:
        """SSE frames of a run whose newest event is `seq`: those after `after`, or the present status and what follows."""
        channel = self.channels.setdefault(run_id, Channel(seq, start=seq))
        channel.viewers += 1
        self.viewers += 1
        self._woken.set()
        try:
            yield b"retry: 1000\n\n"
            if after is None:
                now = await self._in_thread(self._status, run_id)
                if now is None:
                    return
                after = (now[0], 0)
                yield now[1]
            elif after[0] > max(seq, channel.seq):
                after = (-REPLAY_EVENTS - 1, 0)  # a number that was never given out: the page knows another past
            async for frames in self._follow(channel, run_id, after, wanted):
                yield frames
        finally:
            self.viewers -= 1
            channel.viewers -= 1
            if channel.viewers == 0 and self.channels.get(run_id) is channel:
                del self.channels[run_id]

    async def _follow(
        self, channel: Channel, run_id: int, after: Position, wanted: frozenset[str] | None
    ) -> AsyncIterator[bytes]:
        cursor, skip = after  # `skip` frames of the event after `cursor` have been seen
        catching_up = True  # until the ring is reached; who falls out of it later must refetch
        while not (self._stopping or channel.gone):
            changed, events = channel.changed, channel.after(cursor)
            if events is None and catching_up and channel.seq - cursor <= REPLAY_EVENTS:
                replayed = await self._in_thread(self._replay, run_id, cursor)
                if replayed is None:
                    return  # gone, or the database is away: the browser comes back with the same Last-Event-ID
                for event in replayed[0]:
                    yield event.encode(wanted, skip if event.seq == cursor + 1 else 0)
                cursor, skip = replayed[1], 0
                continue
            if events is None:
                self.resets += 1
                cursor, skip = channel.seq, 0
                yield f"event: reset\nid: {cursor}\ndata: {{}}\n\n".encode()
                continue
            catching_up = False
            for event in events:
                yield event.encode(wanted, skip if event.seq == cursor + 1 else 0)
                cursor, skip = event.seq, 0
            if not events:
                try:
                    async with asyncio.timeout(PING_SECONDS):
                        await changed.wait()
                except TimeoutError:
                    yield b": ping\n\n"

    async def _tail(self) -> None:
        while not self._stopping:
            try:
                async with asyncio.timeout(self.fallback_seconds if self.channels else None):
                    await self._woken.wait()
            except TimeoutError:
                pass
            self._woken.clear()
            known = {run_id: channel.seq for run_id, channel in self.channels.items()}
            news = await self._in_thread(self._news, known) if known and not self._stopping else {}
            if news is None:
                await asyncio.sleep(0.5)
                self._woken.set()
                continue
            for run_id, news_of_run in news.items():
                channel = self.channels.get(run_id)
                if channel is None or channel.seq != known[run_id]:
                    continue  # all viewers left and others came meanwhile
                if news_of_run is None:
                    channel.gone = True
                    channel.wake()
                    continue
                if news_of_run[1] - channel.seq >= READ_EVENTS:
                    self._woken.set()
                channel.append(*news_of_run)

    def _news(self, known: dict[int, int]) -> dict[int, tuple[list[Event], int] | None]:
        """New events of each run that has some, and the number up to which they go; None for a run that was deleted."""
        with self.database.read() as session:
            newest = dict(session.execute(select(Run.id, Run.seq).where(Run.id.in_(known))).all())
            return {
                run_id: read_events(session, run_id, seq, READ_EVENTS)
                for run_id, seq in known.items()
                if newest.get(run_id) != seq
            }

    def _replay(self, run_id: int, after: int) -> tuple[list[Event], int] | None:
        with self.database.read() as session:
            return read_events(session, run_id, after, READ_EVENTS)

    def _status(self, run_id: int) -> tuple[int, bytes] | None:
        with self.database.read() as session:
            return status_now(session, run_id)

    async def _in_thread(self, function: Callable[..., T], *arguments: Any) -> T | None:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)
        except SQLAlchemyError as error:
            self.failures += 1
            log.warning("the live view cannot read the database: %s", str(error).partition("\n")[0])
            return None
