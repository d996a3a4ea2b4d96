"""The live stream: one hub per process tails each run that has viewers, encodes every event once, and feeds all viewers.

Viewers that keep up are one loop: each new event is one buffer, written to every connection. A viewer that was away
(Last-Event-ID), or whose connection takes no more for now, goes on by itself from its cursor: first from the database, then from
the run's ring of recent events, until it has caught up. Who falls behind the ring, or was away too long, gets one `reset` and
refetches; a connection that takes nothing for STALL_SECONDS is closed. Nobody waits for anybody.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from sqlalchemy.exc import SQLAlchemyError

from server.database.connection import Database
from server.live.frames import Event, read_events, read_news, status_now
from server.series.layout import Layout

T = TypeVar("T")
Position = tuple[int, int]  # event number, and how many frames of the next event have been seen

log = logging.getLogger("stablessm.live")

RING_EVENTS = 256
RING_BYTES = 16 << 20
REPLAY_EVENTS = 2000
READ_EVENTS = 64
PING_SECONDS = 15.0
STALL_SECONDS = 30.0
SWEEP_SECONDS = 5.0
FALLBACK_SECONDS = 2.0
ROUND_SECONDS = 0.1  # at the least between two looks at the database: what comes faster than that shares looks and writes
MAX_VIEWERS = 1000
RESET_AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER: the kernel, too, forgets what was not taken


class Flow(Protocol):
    """Whether a connection takes more for now."""

    write_paused: bool


class Connection(Protocol):
    """What a viewer needs of its HTTP connection (`server.http.protocol`)."""

    on_writable: Callable[[], None] | None  # told when what was written is nearly all gone
    flow: Flow
    transport: asyncio.Transport


@dataclass(eq=False)
class Viewer:
    """One connection and how far it has come; `cursor` stands still while it is among the channel's `following`."""

    connection: Connection
    wanted: frozenset[str] | None  # series; None: all
    chunked: bool  # HTTP/1.1; before that a body ends with its connection
    cursor: int = 0
    skip: int = 0  # frames of the event after `cursor` that have been seen
    left: bool = False
    waiting: int = 0  # bytes that the connection had not taken at `since`
    since: float = 0.0
    woken: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def full(self) -> bool:
        return self.connection.flow.write_paused

    def leave(self, *_: object) -> None:
        self.left = True
        self.woken.set()

    async def wait(self) -> None:
        self.woken.clear()
        await self.woken.wait()

    def framed(self, data: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(data), data) if self.chunked else data

    def write(self, data: bytes) -> None:
        self.connection.transport.write(self.framed(data))

    def stalled(self, now: float) -> bool:
        """Whether nothing was taken for too long; asked once in a while."""
        waiting = self.connection.transport.get_write_buffer_size() if self.full else 0
        if waiting == 0 or waiting != self.waiting:
            self.waiting, self.since = waiting, now
        return now - self.since >= STALL_SECONDS

    def drop(self) -> None:
        """End the connection now, whatever it has not taken."""
        transport = self.connection.transport
        if not transport.is_closing():
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_ONCE)
            transport.abort()
        self.leave()


@dataclass(eq=False)
class Channel:
    """Recent events of one run that somebody watches."""

    seq: int  # newest event known here
    ring: deque[Event] = field(default_factory=deque)
    size: int = 0
    gone: bool = False
    start: int = -1  # the ring holds every event after this one
    viewers: set[Viewer] = field(default_factory=set)
    following: set[Viewer] = field(default_factory=set)  # those that have everything up to `seq`
    spoke: float = 0.0  # when they were last written to

    def append(self, events: list[Event], seq: int, now: float) -> None:
        """Add events; `seq` is the number up to which they go (what was taken back leaves gaps)."""
        before, self.seq = self.seq, seq
        for event in events:
            self.ring.append(event)
            self.size += event.size
        while len(self.ring) > RING_EVENTS or (self.size > RING_BYTES and len(self.ring) > 1):
            oldest = self.ring.popleft()
            self.size -= oldest.size
            self.start = oldest.seq
        if events:
            self.tell(lambda wanted: b"".join(event.encode(wanted) for event in events), before, now)

    def tell(self, text: Callable[[frozenset[str] | None], bytes], before: int, now: float) -> None:
        """Write to all that follow, one buffer for all that want the same; who cannot take it, or was ahead, goes on alone."""
        self.spoke = now
        made: dict[tuple[frozenset[str] | None, bool], bytes] = {}
        for viewer in list(self.following):
            ahead = viewer.cursor > before or viewer.skip > 0  # it came with more than was known here
            if viewer.full or ahead:
                viewer.cursor = viewer.cursor if ahead else before
                self.following.discard(viewer)
                viewer.woken.set()
                continue
            key = viewer.wanted, viewer.chunked
            if key not in made:
                made[key] = viewer.framed(text(viewer.wanted))
            viewer.connection.transport.write(made[key])

    def after(self, cursor: int) -> list[Event] | None:
        """Events after `cursor`, or None when the ring has lost some of them."""
        return None if cursor < self.start else [e for e in self.ring if e.seq > cursor]

    def wake(self) -> None:
        for viewer in self.viewers:
            viewer.woken.set()


class Hub:
    """All channels of this process and the one task that fills them."""

    def __init__(self, database: Database, *, fallback_seconds: float = FALLBACK_SECONDS) -> None:
        self.database, self.fallback_seconds = database, fallback_seconds
        self.channels: dict[int, Channel] = {}
        self.viewers = self.resets = self.stalled = self.failures = 0
        self._woken = asyncio.Event()
        self.pushed = True  # wake-ups arrive; else news comes every `fallback_seconds`
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []
        self._asked: dict[int, asyncio.Future[tuple[int, bytes] | None]] = {}
        self._layouts: dict[int, Layout] = {}
        # threads of its own: a busy API must not hold up the live view
        self._threads = ThreadPoolExecutor(2, "live")

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._tail()), asyncio.create_task(self._sweep())]

    def stop(self) -> None:
        """Ends every stream soon; the browser reconnects by itself."""
        self._stopping = True
        self._woken.set()
        for channel in self.channels.values():
            channel.wake()

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

    def push(self, works: bool) -> None:
        """Whether wake-ups arrive from now on; every viewer is told when that changes."""
        if works == self.pushed:
            return
        self.pushed = works
        for viewer in [viewer for channel in self.channels.values() for viewer in channel.viewers]:
            if not viewer.full:
                viewer.write(self._pace())

    def _pace(self) -> bytes:
        seconds = 0 if self.pushed else self.fallback_seconds
        return f'event: live\ndata: {{"push":{str(self.pushed).lower()},"seconds":{seconds:g}}}\n\n'.encode()

    @property
    def watched(self) -> bool:
        return bool(self.channels)

    async def present(self, run_id: int) -> tuple[int, bytes] | None:
        """The run's newest number and a frame of its present status; who asks at the same time shares one read."""
        asked = self._asked.get(run_id)
        if asked is None:
            asked = asyncio.get_running_loop().run_in_executor(self._threads, self._status, run_id)
            self._asked[run_id] = asked
            asked.add_done_callback(lambda _: self._asked.pop(run_id))
        return await asyncio.shield(asked)

    async def feed(self, viewer: Viewer, run_id: int, present: tuple[int, bytes], after: Position | None) -> None:
        """Write SSE frames of a run that is at `present`: those after `after`, or the status and what follows. Until it ends."""
        seq, status = present
        channel = self.channels.setdefault(run_id, Channel(seq, start=seq))
        channel.viewers.add(viewer)
        self.viewers += 1
        self._woken.set()
        viewer.connection.on_writable = viewer.woken.set
        try:
            viewer.write(b"retry: 1000\n\n" + (b"" if self.pushed else self._pace()) + (status if after is None else b""))
            viewer.cursor, viewer.skip = after or (seq, 0)
            if viewer.cursor > max(seq, channel.seq):
                viewer.cursor = -REPLAY_EVENTS - 1  # a number that was never given out: the page knows another past
            await self._follow(channel, run_id, viewer)
        finally:
            viewer.connection.on_writable = None
            channel.following.discard(viewer)
            channel.viewers.discard(viewer)
            self.viewers -= 1
            if not channel.viewers and self.channels.get(run_id) is channel:
                del self.channels[run_id]
                self._layouts.pop(run_id, None)
        if viewer.full:
            viewer.drop()  # nobody waits for what it does not take

    async def _follow(self, channel: Channel, run_id: int, viewer: Viewer) -> None:
        catching_up = True  # until the ring is reached; who falls out of it later must refetch
        while not (self._stopping or channel.gone or viewer.left):
            if viewer.full or viewer in channel.following:
                await viewer.wait()
                continue
            events = channel.after(viewer.cursor)
            if events is None and catching_up and channel.seq - viewer.cursor <= REPLAY_EVENTS:
                replayed = await self._in_thread(self._replay, run_id, viewer.cursor)
                if replayed is None:
                    return  # gone, or the database is away: the browser comes back with the same Last-Event-ID
                events = replayed[0]
                if self._write(viewer, events):
                    viewer.cursor, viewer.skip = replayed[1], 0
            elif events is None:
                self.resets += 1
                viewer.cursor, viewer.skip = channel.seq, 0
                viewer.write(f"event: reset\nid: {channel.seq}\ndata: {{}}\n\n".encode())
            elif self._write(viewer, events):
                catching_up = False
                channel.following.add(viewer)

    def _write(self, viewer: Viewer, events: Iterable[Event]) -> bool:
        """As many as the connection takes; whether these were all."""
        for event in events:
            if viewer.full:
                return False
            viewer.write(event.encode(viewer.wanted, viewer.skip if event.seq == viewer.cursor + 1 else 0))
            viewer.cursor, viewer.skip = event.seq, 0
        return True

    async def _sweep(self) -> None:
        """A word to those who have heard nothing for long, and an end to those who do not listen."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now = loop.time()
            for channel in self.channels.values():
                for viewer in channel.viewers:
                    if viewer.stalled(now):
                        self.stalled += 1
                        viewer.drop()
                if now - channel.spoke > PING_SECONDS - SWEEP_SECONDS:
                    channel.tell(lambda _: b": ping\n\n", channel.seq, now)

    async def _tail(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._stopping:
            try:
                async with asyncio.timeout(self.fallback_seconds if self.channels else None):
                    await self._woken.wait()
            except TimeoutError:
                pass
            self._woken.clear()
            begun = loop.time()
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
                channel.append(*news_of_run, loop.time())
            await asyncio.sleep(begun + ROUND_SECONDS - loop.time())

    def _news(self, known: dict[int, int]) -> dict[int, tuple[list[Event], int] | None]:
        """New events of each run that has some, and the number up to which they go; None for a run that was deleted."""
        with self.database.read() as session:
            return read_news(session, known, self._layouts, READ_EVENTS)

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
