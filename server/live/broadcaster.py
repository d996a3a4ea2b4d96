"""The live stream: one broadcaster per process reads the new events of each run that has viewers and encodes each event once.

Every viewer is one asynchronous generator with a cursor of its own. It takes what is new from the run's recent events, or from
the database when it was away for longer (Last-Event-ID), and it waits only for its own connection: a slow viewer delays nobody.
A viewer that falls behind the recent events, or was away too long, gets one `reset` and fetches everything again. A connection
that takes nothing for STALL_SECONDS is closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from sqlalchemy.exc import SQLAlchemyError

from server.database.connection import Database
from server.live.frames import EncodedEvent, read_events, read_new_events, status_now
from server.series.layout import Layout

T = TypeVar("T")
Position = tuple[int, int]  # event number, and how many frames of the next event have been seen

log = logging.getLogger("stablessm.live")

RECENT_EVENTS = 256
RECENT_BYTES = 16 << 20
REPLAY_EVENTS = 2000
READ_EVENTS = 64
PING_SECONDS = 15.0
STALL_SECONDS = 30.0
CHECK_SECONDS = 5.0
POLL_SECONDS = 2.0
ROUND_SECONDS = 0.1  # at least between two reads of the database, so that frequent events share reads and writes
MAX_VIEWERS = 1000
PING = b": ping\n\n"


class Connection(Protocol):
    """A viewer's HTTP connection, as `server.http.protocol` has it: ASGI alone can neither see nor end one that nobody reads."""

    @property
    def blocked(self) -> bool: ...

    @property
    def waiting(self) -> int: ...

    def abort(self) -> None: ...


@dataclass(eq=False)
class Viewer:
    """One connection, and since when it has taken nothing."""

    connection: Connection
    waiting: int = 0  # bytes that the connection had not taken at `since`
    since: float = 0.0

    def stalled(self, now: float) -> bool:
        """Whether nothing was taken for too long; to be called every few seconds."""
        waiting = self.connection.waiting if self.connection.blocked else 0
        if waiting == 0 or waiting != self.waiting:
            self.waiting, self.since = waiting, now
        return now - self.since >= STALL_SECONDS


@dataclass(eq=False)
class Channel:
    """Recent events of one run that has viewers."""

    seq: int  # newest event known here
    start: int  # `recent` holds every event after this one
    recent: deque[EncodedEvent] = field(default_factory=deque)
    size: int = 0
    gone: bool = False
    viewers: set[Viewer] = field(default_factory=set)
    written: float = 0.0  # when the viewers last got something
    pings: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def append(self, events: list[EncodedEvent], seq: int, now: float) -> None:
        """Add events; `seq` is the number up to which they go (rolled back events leave gaps)."""
        self.seq = seq
        for event in events:
            self.recent.append(event)
            self.size += event.size
        while len(self.recent) > RECENT_EVENTS or (self.size > RECENT_BYTES and len(self.recent) > 1):
            oldest = self.recent.popleft()
            self.size -= oldest.size
            self.start = oldest.seq
        if events:
            self.written = now
            self.notify()

    def next(self, cursor: int) -> EncodedEvent | None:
        """The first recent event after `cursor`, which is not before `start`."""
        found = None
        for event in reversed(self.recent):
            if event.seq <= cursor:
                break
            found = event
        return found

    def ping(self, now: float) -> None:
        self.written = now
        self.pings += 1
        self.notify()

    def notify(self) -> None:
        """Let all viewers that wait look again."""
        self.changed.set()
        self.changed = asyncio.Event()


class Broadcaster:
    """All channels of this process and the task that fills them."""

    def __init__(self, database: Database, *, poll_seconds: float = POLL_SECONDS) -> None:
        self.database, self.poll_seconds = database, poll_seconds
        self.channels: dict[int, Channel] = {}
        self.viewers = self.resets = self.stalled = self.failures = 0
        self.pushed = True  # notifications arrive; without them new events are found every `poll_seconds`
        self._woken = asyncio.Event()
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []
        self._status_reads: dict[int, asyncio.Future[tuple[int, bytes] | None]] = {}
        self._layouts: dict[int, Layout] = {}
        # threads of its own: a busy API must not hold up the live view
        self._threads = ThreadPoolExecutor(2, "live")

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._read_new_events()), asyncio.create_task(self._check_viewers())]

    def stop(self) -> None:
        """End every stream soon; the browser reconnects by itself."""
        self._stopping = True
        self._woken.set()
        for channel in self.channels.values():
            channel.notify()
            for viewer in channel.viewers:
                if viewer.connection.blocked:
                    viewer.connection.abort()  # it would hold up the shutdown

    async def close(self) -> None:
        self.stop()
        for task in self._tasks[1:]:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def wake(self) -> None:
        """Something may be new; costs one small query if nothing is."""
        self._woken.set()

    def set_pushed(self, pushed: bool) -> None:
        """Say whether notifications arrive from now on; every viewer gets a `live` frame when that changes."""
        if pushed != self.pushed:
            self.pushed = pushed
            for channel in self.channels.values():
                channel.notify()

    async def present(self, run_id: int) -> tuple[int, bytes] | None:
        """The run's newest number and a frame of its present status; requests at the same time share one read."""
        read = self._status_reads.get(run_id)
        if read is None:
            read = asyncio.get_running_loop().run_in_executor(self._threads, self._status, run_id)
            self._status_reads[run_id] = read
            read.add_done_callback(lambda _: self._status_reads.pop(run_id))
        return await asyncio.shield(read)

    async def stream(
        self, viewer: Viewer, run_id: int, present: tuple[int, bytes], after: Position | None, wanted: frozenset[str] | None
    ) -> AsyncGenerator[bytes, None]:
        """SSE frames of a run that is at `present`: those after `after`, or its status and what follows.

        `wanted` series only; None: all. Ends when the run is deleted, or the server stops.
        """
        seq, status = present
        channel = self.channels.setdefault(run_id, Channel(seq, start=seq))
        channel.viewers.add(viewer)
        self.viewers += 1
        self._woken.set()
        try:
            pushed = self.pushed
            yield b"retry: 1000\n\n" + (b"" if pushed else self._live_frame()) + (status if after is None else b"")
            cursor, skip = after or (seq, 0)
            if cursor > max(seq, channel.seq):
                cursor = -REPLAY_EVENTS - 1  # a number that was never given out: the page knows another past
            pings = channel.pings
            catching_up = True  # until all recent events were sent; afterwards it may no longer read the database
            while not (self._stopping or channel.gone):
                changed = channel.changed
                if cursor < channel.start:
                    if catching_up and channel.seq - cursor <= REPLAY_EVENTS:
                        replayed = await self._in_thread(self._replay, run_id, cursor)
                        if replayed is None:
                            return  # the run or the database is away: the browser comes back with the same Last-Event-ID
                        for old in replayed[0]:
                            yield old.encode(wanted, skip if old.seq == cursor + 1 else 0)
                            cursor, skip = old.seq, 0
                        cursor, skip = replayed[1], 0
                    else:
                        self.resets += 1
                        cursor, skip = channel.seq, 0
                        yield f"event: reset\nid: {cursor}\ndata: {{}}\n\n".encode()
                elif (event := channel.next(cursor)) is not None:
                    encoded = event.encode(wanted, skip if event.seq == cursor + 1 else 0)
                    cursor, skip = event.seq, 0
                    yield encoded
                elif pushed != self.pushed:
                    pushed = self.pushed
                    yield self._live_frame()
                elif pings != channel.pings:
                    pings = channel.pings
                    yield PING
                else:
                    catching_up = False
                    await changed.wait()
        finally:
            channel.viewers.discard(viewer)
            self.viewers -= 1
            if not channel.viewers and self.channels.get(run_id) is channel:
                del self.channels[run_id]
                self._layouts.pop(run_id, None)
            if viewer.connection.blocked:
                viewer.connection.abort()  # the end of the answer would wait for it

    def _live_frame(self) -> bytes:
        seconds = 0 if self.pushed else self.poll_seconds
        return f'event: live\ndata: {{"push":{str(self.pushed).lower()},"seconds":{seconds:g}}}\n\n'.encode()

    async def _check_viewers(self) -> None:
        """Send pings on silent channels, and close the connections that take nothing."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            now = loop.time()
            for channel in self.channels.values():
                for viewer in channel.viewers:
                    if viewer.stalled(now):
                        self.stalled += 1
                        viewer.connection.abort()
                if now - channel.written > PING_SECONDS - CHECK_SECONDS:
                    channel.ping(now)

    async def _read_new_events(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._stopping:
            try:
                async with asyncio.timeout(self.poll_seconds if self.channels else None):
                    await self._woken.wait()
            except TimeoutError:
                pass
            self._woken.clear()
            begun = loop.time()
            known = {run_id: channel.seq for run_id, channel in self.channels.items()}
            found = await self._in_thread(self._new_events, known) if known and not self._stopping else {}
            if found is None:
                await asyncio.sleep(0.5)
                self._woken.set()
                continue
            for run_id, of_run in found.items():
                channel = self.channels.get(run_id)
                if channel is None or channel.seq != known[run_id]:
                    continue  # all viewers left and others came meanwhile
                if of_run is None:
                    channel.gone = True
                    channel.notify()
                    continue
                if of_run[1] - channel.seq >= READ_EVENTS:
                    self._woken.set()
                channel.append(*of_run, loop.time())
            if not self._stopping:
                await asyncio.sleep(begun + ROUND_SECONDS - loop.time())

    def _new_events(self, known: dict[int, int]) -> dict[int, tuple[list[EncodedEvent], int] | None]:
        """New events of each run that has some, and the number up to which they go; None for a run that was deleted."""
        with self.database.read() as session:
            return read_new_events(session, known, self._layouts, READ_EVENTS)

    def _replay(self, run_id: int, after: int) -> tuple[list[EncodedEvent], int] | None:
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
