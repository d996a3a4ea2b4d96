"""The live stream of a real server loses and repeats no event and has a low delay, even with stalled and leaving viewers, on
every wake-up path."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psycopg
import pytest
import redis
from sqlalchemy import make_url

from server.database.connection import Database
from server.http.serving import Server
from server.lifecycle import transitions as lifecycle
from server.lifecycle.worker_wakeups import EVENTS_CHANNEL, EVENTS_NOTIFY
from server.live.broadcaster import REPLAY_EVENTS
from server.live.frames import parse_position
from stablessm_core.telemetry.typed_arrays import decode
from tests.server.http_service import BEARER, frames, running
from tests.server.recording import Recording, claimed, nonfinite
from tests.server.storing import truncate

pytestmark = [pytest.mark.spread, pytest.mark.both_engines, pytest.mark.slow]

RATIO, EIGENVALUE, DISTANCE = "ssm/0/grad_over_weight", "ssm/0/eigenvalue", "ssm/0/boundary_distance"
TIMEOUT = httpx.Timeout(90)


@pytest.fixture
def recording(database: Database) -> Recording:
    return Recording(database, claimed(database, train__steps=100_000, model__d_state=4), width=4)


@pytest.fixture
def sqlite_recording(sqlite: Database) -> Recording:
    return Recording(sqlite, claimed(sqlite, train__steps=100_000, model__d_state=4), width=4)


@pytest.fixture
def service(recording: Recording, tmp_path: Path) -> Iterator[tuple[str, Server]]:
    with running(recording.database.url, tmp_path) as service:
        yield service


class Viewer:
    """Reads a stream in a separate thread, which appends to `events`."""

    def __init__(self, address: str, *, after: str | None = None, query: str = "") -> None:
        self.events: list[dict[str, Any]] = []
        self.at: list[float] = []
        self.opened, self.closed = threading.Event(), threading.Event()
        self.status: int | None = None
        headers = {**BEARER, **({"Last-Event-ID": after} if after is not None else {})}
        threading.Thread(target=self._read, args=(f"{address}/api/runs/1/stream{query}", headers), daemon=True).start()

    def _read(self, url: str, headers: dict[str, str]) -> None:
        try:
            with httpx.stream("GET", url, headers=headers, timeout=TIMEOUT) as answer:
                self.status = answer.status_code
                self.opened.set()
                for event in frames(answer):
                    self.at.append(time.perf_counter())
                    # The event is appended after its time, because a test that sees the event reads the time.
                    self.events.append(event)
        finally:
            self.closed.set()

    def wait(self, count: int, seconds: float = 90.0) -> list[dict[str, Any]]:
        deadline = time.monotonic() + seconds
        while len(self.events) < count:
            assert time.monotonic() < deadline, f"{len(self.events)} of {count} events: {[e['event'] for e in self.events]}"
            time.sleep(0.005)
        return self.events


def steps(events: list[dict[str, Any]], name: str = RATIO) -> list[int]:
    points = [s for e in events if e["event"] == "points" for s in e["data"]["series"] if s["name"] == name]
    return [int(step) for one in points for step in decode(one["step"])]


def values(events: list[dict[str, Any]], name: str) -> np.ndarray:
    points = [s for e in events if e["event"] == "points" for s in e["data"]["series"] if s["name"] == name]
    return np.concatenate([decode(one["value"]) for one in points])


def test_a_viewer_gets_the_current_status_and_then_only_new_points(recording: Recording, service: tuple[str, Server]) -> None:
    recording.write(50)
    viewer = Viewer(service[0])
    first = viewer.wait(1)[0]
    assert (first["event"], first["data"]["status"], first["data"]["step"]) == ("status", "running", 50)
    recording.write(30)
    recording.write(20, [nonfinite(step=99)])
    events = viewer.wait(4)
    assert steps(events) == list(range(51, 101))
    for name in (RATIO, EIGENVALUE, DISTANCE, "train/loss"):
        assert np.array_equal(values(events, name), recording.truth[name][50:].astype(np.float32), equal_nan=True)
    assert [e["event"] for e in events] == ["status", "points", "alert", "points"]
    alert = httpx.get(f"{service[0]}/api/runs/1/alerts", headers=BEARER, timeout=60).json()["alerts"][0]
    assert events[2]["data"] == alert


def test_the_stream_reports_a_rollback_and_the_end_of_the_run(recording: Recording, service: tuple[str, Server]) -> None:
    recording.write(50)
    viewer = Viewer(service[0])
    viewer.wait(1)
    with recording.database.write() as session:
        truncate(session, 1, recording.claim.attempt, 31, "rolled back")
    with recording.database.write() as session:
        lifecycle.finish(session, 1, recording.claim.attempt, "finished", "done")
    back, end = viewer.wait(3)[1:]
    assert (back["data"]["truncated_from"], back["data"]["reason"], back["data"]["step"]) == (31, "rolled back", 30)
    assert (end["data"]["status"], end["data"]["reason"]) == ("finished", "done")


def test_a_viewer_that_reconnects_neither_misses_nor_repeats_an_event(recording: Recording, service: tuple[str, Server]) -> None:
    for _ in range(10):
        recording.write(5, [nonfinite(step=recording.next)])
    everything = Viewer(service[0], after="0").wait(22)
    assert steps(everything) == list(range(1, 51))
    ids = [event["id"] for event in everything]
    assert len(set(ids)) == len(ids)
    for cut in (1, 2, 3, 4, 7, 20):  # some cuts are between the frames of one event
        rest = Viewer(service[0], after=ids[cut - 1]).wait(22 - cut)
        assert rest == everything[cut:]
    by_query = Viewer(service[0], query=f"?last_event_id={ids[4]}").wait(17)
    assert by_query == everything[5:]
    assert Viewer(service[0], query=f"?after={ids[4]}").wait(17) == by_query


def test_only_the_requested_series_are_sent(recording: Recording, service: tuple[str, Server]) -> None:
    viewers = [Viewer(service[0], after="0", query=f"?series={names}") for names in (f"{RATIO},train/loss", "nothing", "")]
    recording.write(5)
    named = [[s["name"] for s in viewer.wait(3)[2]["data"]["series"]] for viewer in viewers]
    assert sorted(named[0]) == sorted([RATIO, "train/loss"])
    assert named[1:] == [[], []]
    assert viewers[1].events[2]["data"]["step"] == 5  # progress is sent even without series


def test_events_are_numbered_as_in_the_database(recording: Recording, service: tuple[str, Server]) -> None:
    viewer = Viewer(service[0], after="0")
    for _ in range(5):
        recording.write(3)
    events = viewer.wait(7)
    assert [e["id"] for e in events] == [str(e["data"]["seq"]) for e in events] == [str(n) for n in range(1, 8)]


def test_a_viewer_that_was_away_too_long_gets_a_reset_event(sqlite_recording: Recording, tmp_path: Path) -> None:
    from server.database.models import Run

    with running(sqlite_recording.database.url, tmp_path) as (address, _):
        with sqlite_recording.database.write() as session:
            run = session.get(Run, 1)
            assert run is not None
            run.seq += REPLAY_EVENTS + 10
        viewer = Viewer(address, after="1")
        reset = viewer.wait(1)[0]
        assert reset["event"] == "reset"
        sqlite_recording.write(5)
        assert steps(viewer.wait(2)) == [1, 2, 3, 4, 5]
        assert int(viewer.events[1]["id"]) == int(reset["id"]) + 1
        assert Viewer(address, after="999999").wait(1)[0]["event"] == "reset"


def test_a_stalled_viewer_does_not_slow_other_viewers_and_is_reset(
    sqlite_recording: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With the real number the test would take minutes.
    monkeypatch.setattr("server.live.broadcaster.RECENT_EVENTS", 8)
    with running(sqlite_recording.database.url, tmp_path) as (address, server):
        port = int(address.rsplit(":", 1)[1])
        stalled = socket.socket()
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stalled.connect(("127.0.0.1", port))
        head = f"GET /api/runs/1/stream HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: {BEARER['Authorization']}\r\n\r\n"
        stalled.sendall(head.encode())
        stalled.settimeout(90)
        begun = b""
        while b"event: status" not in begun:  # so that its position is fixed before anything is written
            begun += stalled.recv(1024)
        healthy = Viewer(address)
        healthy.wait(1)
        for n in range(1, 41):
            sqlite_recording.write(5000)
            events = healthy.wait(n + 1)
        assert steps(events) == list(range(1, 5000 * 40 + 1))
        assert server.broadcaster.viewers == 2
        received = b""
        while b"event: reset" not in received:
            received = received[-20:] + stalled.recv(1 << 20)
        assert server.broadcaster.resets == 1
        stalled.close()


def test_all_viewers_share_one_encoding(sqlite_recording: Recording, tmp_path: Path) -> None:
    with running(sqlite_recording.database.url, tmp_path) as (address, server):
        viewers = [Viewer(address) for _ in range(20)]
        for viewer in viewers:
            viewer.wait(1)
        sqlite_recording.write(10)
        for viewer in viewers:
            viewer.wait(2)
        channel = server.broadcaster.channels[1]
        assert (len(channel.viewers), len(channel.recent), len(channel.recent[-1]._encoded)) == (20, 1, 1)


def test_a_channel_is_removed_with_its_last_viewer(sqlite_recording: Recording, tmp_path: Path) -> None:
    with running(sqlite_recording.database.url, tmp_path) as (address, server):
        with httpx.stream("GET", f"{address}/api/runs/1/stream", headers=BEARER, timeout=TIMEOUT) as answer:
            events = frames(answer)  # kept in a variable, because a closed generator would close the connection
            next(events)
            assert server.broadcaster.viewers == 1
        # The server notices the broken connection when it sends something, if not earlier.
        sqlite_recording.write(5)
        deadline = time.monotonic() + 60
        while server.broadcaster.viewers and time.monotonic() < deadline:
            time.sleep(0.02)
        assert (server.broadcaster.viewers, server.broadcaster.channels) == (0, {})


def test_a_deleted_run_ends_its_streams(sqlite_recording: Recording, tmp_path: Path) -> None:
    with sqlite_recording.database.write() as session:
        lifecycle.finish(session, 1, sqlite_recording.claim.attempt, "finished")
    with running(sqlite_recording.database.url, tmp_path) as (address, _):
        viewer = Viewer(address)
        viewer.wait(1)
        assert httpx.delete(f"{address}/api/runs/1", headers=BEARER, timeout=60).status_code == 204
        assert viewer.closed.wait(60)


def test_open_streams_do_not_delay_the_shutdown(sqlite_recording: Recording, tmp_path: Path) -> None:
    with running(sqlite_recording.database.url, tmp_path) as (address, server):
        server.config.timeout_graceful_shutdown = 600  # so that `running` fails if the server waits for endless streams
        viewers = [Viewer(address) for _ in range(5)]
        for viewer in viewers:
            viewer.wait(1)
    assert all(viewer.closed.wait(60) for viewer in viewers)


def test_stream_headers_keep_proxies_from_buffering(sqlite_recording: Recording, tmp_path: Path) -> None:
    with (
        running(sqlite_recording.database.url, tmp_path) as (address, _),
        httpx.stream("GET", f"{address}/api/runs/1/stream", headers=BEARER, timeout=TIMEOUT) as answer,
    ):
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["X-Accel-Buffering"] == "no"
        assert "Content-Encoding" not in answer.headers
        assert next(answer.iter_lines()) == "retry: 1000"


def test_small_responses_are_not_delayed(sqlite: Database, tmp_path: Path) -> None:
    with running(sqlite.url, tmp_path) as (address, _), httpx.Client(base_url=address, timeout=60) as client:
        client.get("/healthz")
        took = [1.0]
        while min(took) >= 0.03 and len(took) < 200:  # with Nagle's algorithm the delay is at least 0.043 s
            began = time.perf_counter()
            client.get("/healthz")
            took.append(time.perf_counter() - began)
    assert min(took) < 0.03


def latencies(recording: Recording, address: str, tell: Any = lambda: None, rounds: int = 12) -> list[float]:
    """Sorted delays in seconds from a commit until the viewer receives the event."""
    viewer = Viewer(address)
    viewer.wait(1)
    time.sleep(0.3)
    found = []
    for n in range(rounds):
        recording.write(2)
        committed = time.perf_counter()
        tell()
        viewer.wait(n + 2)
        found.append(viewer.at[n + 1] - committed)
        time.sleep(0.05)
    return sorted(found)


def soon(recording: Recording, address: str, tell: Any = lambda: None) -> bool:
    """Whether most events arrive within 0.3 s, in one of five attempts. Polling every 2 s cannot be that fast."""
    return any(latencies(recording, address, tell)[6] < 0.3 for _ in range(5))


def test_with_sqlite_the_stream_sends_events_within_its_polling_interval(sqlite_recording: Recording, tmp_path: Path) -> None:
    with running(sqlite_recording.database.url, tmp_path) as (address, _):
        assert soon(sqlite_recording, address)


@pytest.mark.postgres
def test_postgresql_notify_wakes_the_stream(postgres_url: str, tmp_path: Path) -> None:
    database = Database(postgres_url)
    recording = Recording(database, claimed(database, model__d_state=4), width=4)
    libpq = make_url(postgres_url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(libpq, autocommit=True) as connection, running(postgres_url, tmp_path) as (address, _):
        assert soon(recording, address, lambda: connection.execute(f"NOTIFY {EVENTS_NOTIFY}, '1'"))
    database.close()


@pytest.mark.postgres
@pytest.mark.redis
def test_redis_publish_wakes_the_stream(postgres_url: str, redis_url: str, tmp_path: Path) -> None:
    database = Database(postgres_url)
    recording = Recording(database, claimed(database, model__d_state=4), width=4)
    with redis.Redis.from_url(redis_url) as connection, running(postgres_url, tmp_path, broker_url=redis_url) as (address, _):
        assert soon(recording, address, lambda: connection.publish(EVENTS_CHANNEL, "1"))
    database.close()


@pytest.mark.postgres
def test_without_wake_ups_the_stream_polls_the_database(postgres_url: str, tmp_path: Path) -> None:
    database = Database(postgres_url)
    recording = Recording(database, claimed(database, model__d_state=4), width=4)
    with running(postgres_url, tmp_path) as (address, _):
        assert any(latencies(recording, address, rounds=1)[0] < 2.5 for _ in range(5))
    database.close()


@pytest.mark.parametrize(("text", "position"), [("0", (0, 0)), ("17", (17, 0)), ("16.001", (16, 1)), ("16.01", (16, 10))])
def test_valid_event_ids_are_parsed(text: str, position: tuple[int, int]) -> None:
    assert parse_position(text) == position


@pytest.mark.parametrize("text", ["", "x", "-1", "1.x", "1.2.3", "9" * 30, "٣", "1.0001"])
def test_invalid_event_ids_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="event id"):
        parse_position(text)
