"""The live stream: one broadcaster per process reads the new events of each run that has viewers and encodes each event once.

Every viewer is an asynchronous generator with its own cursor. The generator sends the run's recent events. If the client missed
older events (Last-Event-ID), the generator first reads these events from the database. The generator waits only for its own
connection, so a slow viewer does not delay other viewers. A viewer that falls behind the recent events, or was disconnected for
too long, gets one `reset` and fetches everything again. A connection whose client reads nothing for STALL_SECONDS is closed.
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
Position = tuple[int, int]  # event number, and the number of frames of the next event that the viewer has seen

log = logging.getLogger("stablessm.live")

RECENT_EVENTS = 256
RECENT_BYTES = 16 << 20
REPLAY_EVENTS = 2000
READ_EVENTS = 64
PING_SECONDS = 15.0
STALL_SECONDS = 30.0
CHECK_SECONDS = 5.0
POLL_SECONDS = 2.0
ROUND_SECONDS = 0.1  # minimum time between two database reads, so that frequent events share reads and writes
MAX_VIEWERS = 1000
PING = b": ping\n\n"


class Connection(Protocol):
    """A viewer's HTTP connection (server.http.protocol). ASGI alone can neither detect nor close a connection whose client does
    not read."""

    @property
    def blocked(self) -> bool: ...

    @property
    def waiting(self) -> int: ...

    def abort(self) -> None: ...


@dataclass(eq=False)
class Viewer:
    """A connection, and the time since which its client has read nothing."""

    connection: Connection
    waiting: int = 0  # number of bytes that were unsent at the time `since`
    since: float = 0.0

    def stalled(self, now: float) -> bool:
        """True if the client has read nothing for STALL_SECONDS; call this every few seconds."""
        waiting = self.connection.waiting if self.connection.blocked else 0
        if waiting == 0 or waiting != self.waiting:
            self.waiting, self.since = waiting, now
        return now - self.since >= STALL_SECONDS


@dataclass(eq=False)
class Channel:
    """The recent events of a run that has viewers."""

    seq: int  # number of the newest event that was read
    start: int  # `recent` contains every event after this number
    recent: deque[EncodedEvent] = field(default_factory=deque)
    size: int = 0
    gone: bool = False
    viewers: set[Viewer] = field(default_factory=set)
    written: float = 0.0  # when data was last sent to the viewers
    pings: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def append(self, events: list[EncodedEvent], seq: int, now: float) -> None:
        """Add events. `seq` is the newest event number that was read; deleted events leave gaps in these numbers."""
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
        """The first recent event after `cursor`. `cursor` must not be before `start`."""
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
        """Wake all waiting viewers."""
        self.changed.set()
        self.changed = asyncio.Event()


class Broadcaster:
    """All channels of this process and the task that fills them."""

    def __init__(self, database: Database, *, poll_seconds: float = POLL_SECONDS) -> None:
        self.database, self.poll_seconds = database, poll_seconds
        self.channels: dict[int, Channel] = {}
        self.viewers = self.resets = self.stalled = self.failures = 0
        self.pushed = True  # True while notifications arrive; otherwise the broadcaster polls every `poll_seconds`
        self._woken = asyncio.Event()
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []
        self._status_reads: dict[int, asyncio.Future[tuple[int, bytes] | None]] = {}
        self._layouts: dict[int, Layout] = {}
        # separate threads, so that a busy API does not delay the live view
        self._threads = ThreadPoolExecutor(2, "live")

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._read_new_events()), asyncio.create_task(self._check_viewers())]

    def stop(self) -> None:
        """Make every stream end soon. Browsers reconnect automatically."""
        self._stopping = True
        self._woken.set()
        for channel in self.channels.values():
            channel.notify()
            for viewer in channel.viewers:
                if viewer.connection.blocked:
                    viewer.connection.abort()  # an open connection would delay the shutdown

    async def close(self) -> None:
        self.stop()
        for task in self._tasks[1:]:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def wake(self) -> None:
        """Look for new events now; without new events this costs one small query."""
        self._woken.set()

    def set_pushed(self, pushed: bool) -> None:
        """Set whether notifications arrive from now on. Every viewer gets a `live` frame when the value changes."""
        if pushed != self.pushed:
            self.pushed = pushed
            for channel in self.channels.values():
                channel.notify()

    async def present(self, run_id: int) -> tuple[int, bytes] | None:
        """The run's newest event number and a frame with its current status; simultaneous requests share one read."""
        read = self._status_reads.get(run_id)
        if read is None:
            read = asyncio.get_running_loop().run_in_executor(self._threads, self._status, run_id)
            self._status_reads[run_id] = read
            read.add_done_callback(lambda _: self._status_reads.pop(run_id))
        return await asyncio.shield(read)

    async def stream(
        self, viewer: Viewer, run_id: int, present: tuple[int, bytes], after: Position | None, wanted: frozenset[str] | None
    ) -> AsyncGenerator[bytes, None]:
        """The SSE frames of a run after the position `after`. If `after` is None: the run's current status and all later
        frames.

        present: the result of `present`. wanted: the series to send; None for all series. The stream ends when the run is
        deleted or the server stops.
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
                # this database never assigned this event number: the page belongs to another database, so it gets a reset
                cursor = -REPLAY_EVENTS - 1
            pings = channel.pings
            catching_up = True  # False once all recent events were sent; then this viewer no longer reads the database
            while not (self._stopping or channel.gone):
                changed = channel.changed
                if cursor < channel.start:
                    if catching_up and channel.seq - cursor <= REPLAY_EVENTS:
                        replayed = await self._in_thread(self._replay, run_id, cursor)
                        if replayed is None:
                            return  # run or database is unavailable: the browser reconnects with the same Last-Event-ID
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
                viewer.connection.abort()  # otherwise the response could not end until the client reads

    def _live_frame(self) -> bytes:
        seconds = 0 if self.pushed else self.poll_seconds
        return f'event: live\ndata: {{"push":{str(self.pushed).lower()},"seconds":{seconds:g}}}\n\n'.encode()

    async def _check_viewers(self) -> None:
        """Ping silent channels, and close connections whose clients read nothing."""
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
                    continue  # meanwhile, all viewers have left and new viewers have come
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
        """For each run with new events: the events, and the newest number read; None for a run that was deleted."""
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
