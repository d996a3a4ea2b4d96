"""A client on a raw socket cannot block the real server or occupy its connections for long."""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import pytest

from server.http import bodies, protocol
from server.http.api import stream
from server.http.gate import Gate
from tests.server.http_service import TOKEN, running

pytestmark = [pytest.mark.spread, pytest.mark.slow]

SECONDS = 1.0  # deadline in these tests; 15 s in production


@pytest.fixture
def place(sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    monkeypatch.setattr(protocol, "HEADER_SECONDS", SECONDS)
    monkeypatch.setattr(bodies, "BODY_SECONDS", SECONDS)
    with running(sqlite_url, tmp_path) as (address, _):
        yield "127.0.0.1", int(address.rpartition(":")[2])


def head(place: tuple[str, int], method: str = "GET", path: str = "/healthz", *more: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{place[1]}", f"Authorization: Bearer {TOKEN}", *more]
    return "\r\n".join([*lines, "", ""]).encode()


def everything(connection: socket.socket) -> bytes:
    """All bytes until the other side closes the connection. Fails if the other side keeps it open."""
    connection.settimeout(90)
    data = b""
    try:
        while more := connection.recv(65_536):
            data += more
    except ConnectionResetError:
        pass  # the server closed the connection while the test was still sending
    return data


def opened(place: tuple[str, int], said: bytes) -> socket.socket:
    """A connection on which `said` was sent well before the deadline. Retries, because this process may be paused."""
    while True:
        begun = time.monotonic()
        connection = socket.create_connection(place)
        try:
            connection.sendall(said)
        except OSError:
            pass  # too late: the server has already closed the connection
        if time.monotonic() - begun < SECONDS / 2:
            return connection
        connection.close()


def test_silent_and_slow_clients_are_disconnected_and_do_not_block_other_clients(place: tuple[str, int]) -> None:
    silent = [socket.create_connection(place) for _ in range(25)]
    half = [opened(place, b"GET /healthz HTTP/1.1\r\nHost: 127") for _ in range(25)]
    with opened(place, head(place, "GET", "/healthz", "Connection: close")) as good:
        assert everything(good).startswith(b"HTTP/1.1 200")
    for connection in silent:
        assert everything(connection) == b""
        connection.close()
    for connection in half:
        assert everything(connection).startswith(b"HTTP/1.1 408")
        connection.close()


def test_a_slowly_sent_header_is_cut_off_even_if_bytes_keep_arriving(place: tuple[str, int]) -> None:
    with socket.create_connection(place) as connection:
        begun, sent = time.monotonic(), 0
        try:
            for sent, byte in enumerate(head(place) * 20):
                connection.sendall(bytes([byte]))
                if sent > len(head(place)) - 10:
                    time.sleep(0.2)
                if time.monotonic() - begun > 60:
                    pytest.fail("the server did not close the connection")
        except OSError:
            pass
        assert sent < len(head(place) * 20) - 1
        assert b"408" in everything(connection) or sent > 0


def test_the_second_request_on_a_connection_also_has_a_deadline(place: tuple[str, int]) -> None:
    # the beginning of the second request is sent together with the first
    with opened(place, head(place) + b"GET /healthz HT") as connection:
        data = everything(connection)
        assert data.startswith(b"HTTP/1.1 200")
        assert b"HTTP/1.1 408" in data


def test_a_persistent_connection_serves_many_requests(place: tuple[str, int]) -> None:
    with opened(place, head(place)) as connection:
        connection.settimeout(90)
        for number in range(5):
            if number:
                connection.sendall(head(place))
            data = b""
            while not data.endswith(b"}"):
                data += connection.recv(65_536)
            assert data.startswith(b"HTTP/1.1 200")
            # All requests together take longer than the deadline.
            time.sleep(SECONDS / 3)


@pytest.mark.parametrize(
    "request_head",
    [b"GET /" + b"x" * 200_000 + b" HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nX: " + b"x" * 200_000 + b"\r\n\r\n",
     b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 40_000 + b"\r\n", random.Random(0).randbytes(4096), b"GET / HTTP/x.y\r\n\r\n",
     b"\x16\x03\x01\x02\x00\x01\x00\x01",
     b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
     b"POST /api/runs HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n",
     b"POST /api/runs HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
     b"GET / HTTP/1.1\r\nHost: a\r\nX\x00Y: 1\r\n\r\n", b"GET / HTTP/1.1\r\nHost : a\r\n\r\n",
     b"GET / HTTP/1.1\r\nHost: a\r\nX: 1\r\n 2\r\n\r\n",
     b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", b"GET http://a HTTP/1.1\r\nHost: a\r\n\r\n",
     b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n"],
    ids=["long path", "long header", "many headers", "random", "version", "TLS", "two lengths", "coding", "length and coding",
         "NUL", "space", "folded", "CONNECT", "no path", "not ASCII"],
)  # fmt: skip
def test_a_malformed_or_too_long_request_is_refused(place: tuple[str, int], request_head: bytes) -> None:
    with socket.create_connection(place) as connection:
        try:
            connection.sendall(request_head)
        except OSError:
            pass
        data = everything(connection)
        assert data == b"" or data.split(b" ")[1] in (b"400", b"408", b"431", b"501", b"505")


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(("size", "status"), [(65_536, b"200"), (65_537, b"400")])
def test_a_header_of_the_documented_size_is_accepted_and_one_byte_more_is_refused(
    place: tuple[str, int], size: int, status: bytes, *, at_once: bool
) -> None:
    start = head(place, "GET", "/healthz", "Connection: close", "X: ")
    full = start[:-4] + b"x" * (size - len(start)) + start[-4:]
    assert len(full) == size
    with socket.create_connection(place) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for first in range(0, size, size if at_once else 30_000):
            connection.sendall(full[first : first + (size if at_once else 30_000)])
            time.sleep(0.02)
        assert everything(connection).split(b" ")[1] == status


def test_a_slowly_sent_body_is_cut_off(place: tuple[str, int]) -> None:
    start = head(place, "POST", "/api/runs", "Content-Type: application/json", "Content-Length: 1000", "Connection: close")
    with socket.create_connection(place) as connection:
        connection.sendall(start)
        begun = time.monotonic()
        try:
            for _ in range(300):
                connection.sendall(b" ")
                time.sleep(0.1)
                if time.monotonic() - begun > 2 * SECONDS:
                    break
        except OSError:
            pass
        assert everything(connection).startswith(b"HTTP/1.1 408")


def test_an_endless_trailer_is_refused(place: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "BODY_SECONDS", 600.0)
    start = head(place, "POST", "/api/runs", "Content-Type: application/json", "Transfer-Encoding: chunked")
    with opened(place, start + b"2\r\n{}\r\n0\r\nX: ") as connection:
        sent = 0
        try:
            for sent in range(200):  # noqa: B007
                connection.sendall(b"x" * 65_536)
                time.sleep(0.01)
        except OSError:
            pass
        assert everything(connection).split(b" ")[1:2] in ([b"400"], [])
    assert sent < 199


def test_trailers_after_a_chunked_body_change_nothing(place: tuple[str, int]) -> None:
    start = head(place, "POST", "/api/runs", "Content-Type: application/json", "Transfer-Encoding: chunked", "Connection: close")
    with opened(place, start + b"2\r\n{}\r\n0\r\nContent-Type: text/plain\r\nOrigin: http://evil\r\n\r\n") as connection:
        assert everything(connection).startswith(b"HTTP/1.1 422")  # the body `{}` was read, and it lacks the configuration


@pytest.mark.parametrize(("requests", "answered"), [(30, 30), (2000, None)])
def test_requests_sent_at_once_are_answered_in_order_and_a_flood_of_them_is_refused(
    place: tuple[str, int], requests: int, answered: int | None
) -> None:
    with opened(place, head(place) * (requests - 1) + head(place, "GET", "/healthz", "Connection: close")) as connection:
        data = everything(connection)
    if answered is None:
        assert data.count(b"HTTP/1.1 200") < 200
    else:
        assert data.count(b"HTTP/1.1 200") == answered


def test_a_proposal_to_speak_http_2_is_ignored_with_and_without_a_body(place: tuple[str, int]) -> None:
    offer = "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA"
    with opened(place, head(place, "GET", "/healthz", *offer)) as connection:
        connection.settimeout(90)
        assert connection.recv(65_536).startswith(b"HTTP/1.1 200")
    more = *offer, "Content-Type: application/json", "Content-Length: 2"
    with opened(place, head(place, "POST", "/api/runs", *more) + b"{}") as connection:
        connection.settimeout(90)
        assert connection.recv(65_536).startswith(b"HTTP/1.1 422")
        connection.sendall(head(place, "GET", "/healthz", "Connection: close"))
        assert b"HTTP/1.1 200" in everything(connection)


def test_stray_line_ends_do_not_keep_a_connection_open(place: tuple[str, int]) -> None:
    with opened(place, head(place)) as connection:
        connection.settimeout(90)
        assert connection.recv(65_536).startswith(b"HTTP/1.1 200")
        begun = time.monotonic()
        try:
            while time.monotonic() - begun < 60:
                connection.sendall(b"\r\n")
                time.sleep(0.1)
        except OSError:
            pass
        assert time.monotonic() - begun < 60


def test_a_chunked_body_that_never_ends_is_cut_off(place: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "BODY_SECONDS", 600.0)  # so that the length of the body, not the time, ends the request
    start = head(place, "POST", "/api/runs", "Content-Type: application/json", "Transfer-Encoding: chunked", "Connection: close")
    with opened(place, start) as connection:
        try:
            for _ in range(40):
                connection.sendall(b"10000\r\n" + b" " * 65_536 + b"\r\n")
        except OSError:
            pass
        assert everything(connection).split(b" ")[1:2] in ([b"413"], [])


def test_an_idle_connection_is_closed(place: tuple[str, int]) -> None:
    with opened(place, head(place)) as connection:
        data = everything(connection)  # the server closes five seconds after its response
        assert data.startswith(b"HTTP/1.1 200")


def test_a_protocol_upgrade_is_not_accepted(place: tuple[str, int]) -> None:
    with socket.create_connection(place) as connection:
        connection.sendall(head(place, "GET", "/healthz", "Upgrade: websocket", "Connection: Upgrade, close"))
        assert not everything(connection).startswith(b"HTTP/1.1 101")


@pytest.mark.parametrize(
    "path",
    ["../auth.py", "..%2fauth.py", "%2e%2e/%2e%2e/auth.py", "%252e%252e%252fauth.py", "..%5c..%5cauth.py", "..\\auth.py",
     "..;/auth.py", "%2e%2e;/auth.py", "....//auth.py", "/etc/passwd", "%2fetc%2fpasswd", "~root/.bashrc", "base.css%00.js",
     "base.css;x",
     "file:///etc/passwd",
     "%c0%ae%c0%ae/auth.py", "..%c0%af..%c0%afauth.py"],
)  # fmt: skip
def test_no_path_leads_out_of_the_static_files(place: tuple[str, int], path: str) -> None:
    """Uses a raw socket, because clients normalise such paths."""
    for prefix in ("/static/x/", "/static/", "/"):
        with opened(place, head(place, "GET", prefix + path, "Connection: close")) as connection:
            answer = everything(connection)
        assert answer.split(b" ")[1] in (b"400", b"403", b"404", b"405"), (prefix, answer[:200])
        assert b"root:" not in answer
        assert b"class Gate" not in answer


@pytest.mark.parametrize(
    "path", ["/api/runs/1;/stream", "/api/runs/1%2fstream", "/login/../api/runs", "/healthz/..%2fapi/runs", "/login%2f"]
)
def test_a_variant_of_a_public_path_gives_no_access_without_a_token(place: tuple[str, int], path: str) -> None:
    said = head(place, "GET", path, "Connection: close").replace(f"Authorization: Bearer {TOKEN}\r\n".encode(), b"")
    with opened(place, said) as connection:
        assert everything(connection).split(b" ")[1] == b"401"


def test_a_range_header_of_many_pieces_returns_the_whole_file(place: tuple[str, int]) -> None:
    ranges = ",".join(f"{number}-" for number in range(3000))
    with opened(place, head(place, "GET", "/login", f"Range: bytes={ranges}", "Connection: close")) as connection:
        assert everything(connection).split(b" ")[1] == b"200"


def test_the_gate_refuses_websockets_before_routing() -> None:
    """The server has no websockets. If websockets are ever added, the gate refuses their messages before routing."""
    said = []

    async def application(*_: object) -> None:
        said.append("routed")

    async def receive() -> dict[str, object]:
        return {"type": "websocket.connect"}

    async def send(message: MutableMapping[str, object]) -> None:
        said.append((message["type"], message["code"]))

    async def connect() -> None:
        gate: Any = Gate
        await gate(application, None, None)({"type": "websocket", "path": "/api/runs", "headers": []}, receive, send)

    asyncio.run(connect())
    assert said == [("websocket.close", 1008)]


def test_the_total_number_of_live_streams_is_limited(place: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    assert stream.MAX_VIEWERS == 1000
    monkeypatch.setattr(stream, "MAX_VIEWERS", 2)
    body = b'{"task": {"name": "polynomial_memory"}}'
    more = ("Content-Type: application/json", f"Content-Length: {len(body)}", "Connection: close")
    with opened(place, head(place, "POST", "/api/runs", *more) + body) as connection:
        assert everything(connection).split(b" ")[1] == b"201"
    with (
        opened(place, head(place, "GET", "/api/runs/1/stream")) as one,
        opened(place, head(place, "GET", "/api/runs/1/stream")) as two,
    ):
        for connection in (one, two):
            connection.settimeout(90)
            assert connection.recv(12) == b"HTTP/1.1 200"
        with opened(place, head(place, "GET", "/api/runs/1/stream", "Connection: close")) as third:
            refused = everything(third)
    assert refused.split(b" ")[1] == b"503"
    assert b"retry-after: 5" in refused.lower()
