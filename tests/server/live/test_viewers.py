"""Many viewers of one stream: stalled viewers are dropped, old proxies work, pauses are filled, and each run is read once."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from server.database.connection import Database
from server.http.serving import Server
from server.lifecycle import transitions as lifecycle
from server.live.frames import read_events, read_new_events
from server.series.layout import Layout
from tests.server.http_service import BEARER, frames, running
from tests.server.recording import Recording, claimed, nonfinite
from tests.server.storing import truncate

pytestmark = [pytest.mark.spread, pytest.mark.slow]

PATIENCE = 90.0


@pytest.fixture
def recording(sqlite: Database) -> Recording:
    return Recording(sqlite, claimed(sqlite, train__steps=100_000, model__d_state=4), width=4)


def ask(
    address: str, version: str = "1.1", *, after: str = "", small: bool = False, bearer: dict[str, str] = BEARER
) -> socket.socket:
    """A connection that has requested the stream. `small`: with a tiny receive buffer, like that of a slow client."""
    port = int(address.rsplit(":", 1)[1])
    viewer = socket.socket()
    viewer.settimeout(PATIENCE)
    if small:
        viewer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        viewer.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1400)
    viewer.connect(("127.0.0.1", port))
    lines = [f"GET /api/runs/1/stream HTTP/{version}", f"Host: 127.0.0.1:{port}", f"Authorization: {bearer['Authorization']}"]
    viewer.sendall("\r\n".join([*lines, *([f"Last-Event-ID: {after}"] if after else []), "", ""]).encode())
    return viewer


def read_until(viewer: socket.socket, text: bytes) -> bytes:
    data = b""
    while text not in data:
        more = viewer.recv(1 << 16)
        assert more, data
        data += more
    return data


def ids(data: bytes) -> list[str]:
    return [found.decode() for found in re.findall(rb"\nid: ([\d.]+)\n", data)]


def ended_well(viewer: socket.socket) -> bool:
    try:
        while viewer.recv(1 << 16):
            pass
    except ConnectionResetError:
        return False
    return True


def eventually(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_stalled_viewer_is_dropped_and_other_viewers_get_every_event(
    recording: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.live.broadcaster.STALL_SECONDS", 3.0)
    monkeypatch.setattr("server.live.broadcaster.CHECK_SECONDS", 0.2)
    with running(recording.database.url, tmp_path) as (address, server):
        stalled = ask(address, small=True)
        eventually(lambda: server.broadcaster.viewers == 1)
        stream = httpx.stream("GET", f"{address}/api/runs/1/stream", headers=BEARER, timeout=PATIENCE)
        with stream as answer:
            events = frames(answer)
            numbers = [int(next(events)["id"])]
            for _ in range(20):
                recording.write(2000)
                numbers.append(int(next(events)["id"]))
            assert numbers == list(range(numbers[0], numbers[0] + 21))
            eventually(lambda: server.broadcaster.stalled == 1)
            eventually(lambda: server.broadcaster.viewers == 1)
            recording.write(5)
            assert int(next(events)["id"]) == numbers[-1] + 1
        assert not ended_well(stalled)
        assert "stablessm_live_stalled_total 1" in httpx.get(f"{address}/metrics", headers=BEARER, timeout=PATIENCE).text


def test_the_buffer_of_a_stalled_viewer_is_bounded(recording: Recording, tmp_path: Path) -> None:
    with running(recording.database.url, tmp_path) as (address, server):
        stalled = ask(address, small=True)
        eventually(lambda: server.broadcaster.viewers == 1)
        (viewer,) = server.broadcaster.channels[1].viewers
        for n in range(20):
            recording.write(2000)
            eventually(lambda: server.broadcaster.channels[1].seq >= n + 2)  # noqa: B023
        largest = max(len(event.encode(None)) for event in server.broadcaster.channels[1].recent)
        assert viewer.connection.blocked
        assert viewer.connection.waiting < 65_536 + 2 * largest
        stalled.close()


def block(recording: Recording, server: Server) -> None:
    """Write events until the buffer of the only viewer, which never reads, is full."""
    eventually(lambda: server.broadcaster.viewers == 1)
    (viewer,) = server.broadcaster.channels[1].viewers
    for _ in range(100):
        if viewer.connection.blocked:
            return
        seq = server.broadcaster.channels[1].seq
        recording.write(2000)
        eventually(lambda: server.broadcaster.channels[1].seq > seq)  # noqa: B023
    raise AssertionError("the buffer of the connection did not fill up")


def test_a_stalled_viewer_does_not_delay_the_shutdown(recording: Recording, tmp_path: Path) -> None:
    with running(recording.database.url, tmp_path) as (address, server):
        server.config.timeout_graceful_shutdown = 600  # longer than `running` waits until the server stops
        stalled = ask(address, small=True)
        block(recording, server)
    assert not ended_well(stalled)


def test_a_stalled_viewer_whose_token_is_revoked_is_disconnected(recording: Recording, tmp_path: Path) -> None:
    with (
        running(recording.database.url, tmp_path) as (address, server),
        httpx.Client(base_url=address, headers=BEARER, timeout=PATIENCE) as owner,
    ):
        token = owner.post("/api/tokens", json={"name": "guest", "scope": "read"}).raise_for_status().json()
        stalled = ask(address, small=True, bearer={"Authorization": f"Bearer {token['secret']}"})
        block(recording, server)
        (viewer,) = server.broadcaster.channels[1].viewers
        owner.delete(f"/api/tokens/{token['id']}").raise_for_status()
        eventually(lambda: server.broadcaster.viewers == 0)
        assert viewer.connection.transport.is_closing(), "the connection must be closed without waiting for the stalled viewer"
        assert not ended_well(stalled)


def test_an_http_1_0_proxy_gets_frames_without_chunked_encoding(recording: Recording, tmp_path: Path) -> None:
    with running(recording.database.url, tmp_path) as (address, _):
        viewer = ask(address, "1.0")
        head, _, begun = read_until(viewer, b"event: status").partition(b"\r\n\r\n")
        assert b"transfer-encoding" not in head.lower()
        assert begun.startswith(b"retry: 1000\n\nevent: status")
        recording.write(5)
        rest = read_until(viewer, b"event: points")
        assert b"\r\n" not in rest
        viewer.close()


def test_pings_are_sent_while_no_events_occur(recording: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.live.broadcaster.PING_SECONDS", 0.5)
    monkeypatch.setattr("server.live.broadcaster.CHECK_SECONDS", 0.2)
    with running(recording.database.url, tmp_path) as (address, _):
        viewer = ask(address)
        heard = read_until(viewer, b"8\r\n: ping\n\n\r\n")
        assert heard.count(b"event: ") == 1
        viewer.close()


def test_events_read_for_several_runs_together_equal_those_read_for_each_run(database: Database) -> None:
    runs = [Recording(database, claimed(database, train__steps=100_000, model__d_state=4), width=4) for _ in range(3)]
    for n, run in enumerate(runs):
        for _ in range(3 + n):
            run.write(5, [nonfinite(step=run.next)])
    with database.write() as session:
        truncate(session, runs[1].claim.run_id, runs[1].claim.attempt, 8, "rolled back")
    with database.write() as session:
        lifecycle.finish(session, runs[2].claim.run_id, runs[2].claim.attempt, "finished", "done")
    ids = [run.claim.run_id for run in runs]
    layouts: dict[int, Layout] = {}
    for before in (0, 1, 3, 5):
        known = dict.fromkeys(ids, before) | {9999: 1}
        for limit in (2, 64):  # with the smaller limit the runs need several queries
            with database.read() as session:
                news = read_new_events(session, known, layouts, limit)
                alone = {run_id: read_events(session, run_id, before, limit) for run_id in ids}
            assert news.pop(9999) is None
            for run_id, (events, upper) in ((i, found) for i, found in news.items() if found):
                told = alone[run_id]
                assert told is not None
                assert upper == told[1]
                assert [(e.seq, e.encode(None)) for e in events] == [(e.seq, e.encode(None)) for e in told[0]]
            assert set(news) == {i for i in ids if alone[i] != ([], before)}
    assert set(layouts) == set(ids)


def test_a_viewer_ahead_of_the_channel_gets_no_event_twice(
    recording: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Gives viewers time to connect while the channel is behind.
    monkeypatch.setattr("server.live.broadcaster.ROUND_SECONDS", 5.0)
    with running(recording.database.url, tmp_path) as (address, server):
        first = ask(address)
        begun = read_until(first, b"}\n\n")
        eventually(lambda: not server.broadcaster._woken.is_set())
        (start,) = map(int, ids(begun))
        recording.write(5)
        recording.write(5, [nonfinite(step=recording.next)])
        # The third viewer has already seen one of two frames.
        second, third = ask(address), ask(address, after=f"{start + 1}.001")
        eventually(lambda: server.broadcaster.viewers == 3)
        last = f"\nid: {start + 2}\n".encode()
        begun += read_until(first, last)  # the channel has now reached this event
        recording.write(5)
        end = f"\nid: {start + 3}\n".encode()
        numbers = [str(start), str(start + 1), f"{start + 1}.001", str(start + 2), str(start + 3)]
        assert ids(begun + read_until(first, end)) == numbers
        assert ids(read_until(second, end)) == ids(read_until(third, end)) == numbers[-2:]
        for viewer in (first, second, third):
            viewer.close()
