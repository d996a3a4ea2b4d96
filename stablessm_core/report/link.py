"""Sends the frames of a run to the server, on a thread of its own.

Nothing here raises into the training loop. A server that is away is asked again, ever more rarely, up to every 10 seconds. A
server that refuses for good is not asked again: the frames stay in the run's file.
"""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic, time
from typing import Any
from urllib.parse import urlsplit

from stablessm_core.report.frames import CONTENT_TYPE, LIMITS, ends
from stablessm_core.report.outbox import Outbox

SEND_SECONDS = 0.5  # a post waits for more frames this long
HEARTBEAT_SECONDS = 5.0
TIMEOUT = 10.0  # seconds that a request may take
LONGEST_PAUSE = 10.0
LONGEST_WAIT = 60.0  # that a server may ask for with Retry-After
BODY_BYTES = 1 << 20  # bytes that a post has at most, even if the server allows more
ASSUMED = {"body_bytes": BODY_BYTES, "records": LIMITS.records}  # of a post, unless the server names others
LONGEST_ANSWER = 1 << 20


class Refused(Exception):
    """An answer of the server that is no success. transient: the same request may succeed later."""

    def __init__(self, status: int, code: str, message: str, retry_after: float | None = None) -> None:
        self.status, self.code, self.retry_after = status, code, retry_after
        self.transient = status in (408, 425, 429) or status >= 500
        super().__init__(message)


@dataclass(frozen=True)
class Opened:
    """What the server answered when the run was opened."""

    run_id: int
    attempt: int
    url: str
    next_step: int
    body_bytes: int
    records: int


@dataclass(frozen=True)
class Answer:
    """What the server answered to a post."""

    stored_through: int | None
    stop_requested: bool


class Server:
    """A connection to the server at `url`, for one thread at a time."""

    def __init__(self, url: str, token: str | None, timeout: float = TIMEOUT) -> None:
        parts = urlsplit(url)
        self.url, self._token, self._timeout = url.rstrip("/"), token, timeout
        self._secure, self._host = parts.scheme == "https", parts.netloc.rpartition("@")[2]
        self._prefix = parts.path.rstrip("/")
        self._connection: http.client.HTTPConnection | None = None

    def open_run(self, opening: dict[str, Any]) -> Opened:
        """Open the run. Raises Refused, or OSError if the server does not answer."""
        body = json.dumps(opening | {"client_time": time()}).encode()
        answer = self._request("/api/ingest/runs", body, {"Content-Type": "application/json"})
        found = answer.get("limits")
        limits = found if isinstance(found, dict) else {}
        try:
            run_id, attempt = int(answer["run_id"]), int(answer["attempt"])
            next_step = int(answer.get("next_step") or 1)
        except (KeyError, TypeError, ValueError):
            raise Refused(400, "not_understood", "its answer names no run: is this a StableSSM server?") from None
        page = answer.get("url")
        page = f"/runs/{run_id}" if not isinstance(page, str) or not page else page
        url = page if page.startswith("http") else self.url + page
        body_bytes, records = (_positive(limits.get(name), default) for name, default in ASSUMED.items())
        return Opened(run_id, attempt, url, next_step, body_bytes, records)

    def post(self, opened: Opened, body: bytes) -> Answer:
        """Store the frames of `body`; no frames are a heartbeat. Raises Refused, or OSError if the server does not answer."""
        headers = {"Content-Type": CONTENT_TYPE, "X-Attempt": str(opened.attempt)}
        answer = self._request(f"/api/ingest/runs/{opened.run_id}/records", body, headers)
        stored = answer.get("stored_through")
        return Answer(stored if isinstance(stored, int) else None, answer.get("stop_requested") is True)

    def who_am_i(self) -> dict[str, Any]:
        """What the server says about the token. Raises Refused, or OSError if the server does not answer."""
        return self._request("/api/me", None, {}, method="GET")

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            with suppress(OSError):
                self._connection.close()
            self._connection = None

    def _request(self, path: str, body: bytes | None, headers: dict[str, str], method: str = "POST") -> dict[str, Any]:
        if self._token:
            headers = headers | {"Authorization": f"Bearer {self._token}"}
        try:
            if self._connection is None:
                kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
                self._connection = kind(self._host, timeout=self._timeout)
                self._connection.connect()
                self._connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._connection.request(method, self._prefix + path, body, headers)
            response = self._connection.getresponse()
            data, status = response.read(LONGEST_ANSWER), response.status
            wait = response.headers.get("Retry-After", "")
            if not response.isclosed():
                self.close()
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            raise error if isinstance(error, OSError) else OSError(f"{type(error).__name__}: {error}") from error
        try:
            answer = json.loads(data)
        except (ValueError, RecursionError):
            answer = None
        if status in (200, 201):
            if not isinstance(answer, dict):
                raise Refused(400, "not_understood", "its answer is no JSON object: is this a StableSSM server?")
            return answer
        found = answer.get("error") if isinstance(answer, dict) else None
        found = found if isinstance(found, dict) else {}
        message = str(found.get("message") or f"HTTP status {status}")[:300]
        raise Refused(status, str(found.get("code", "")), message, min(LONGEST_WAIT, float(wait)) if wait.isdigit() else None)


class Frames:
    """Sends frames in order to one run of a server, and counts those that can never be stored."""

    def __init__(self, server: Server, opened: Opened) -> None:
        self._server, self._opened = server, opened
        self._limit = max(1, opened.body_bytes)
        self._records = max(1, opened.records)
        self._at_most = self._records  # frames of the next post; fewer after a refusal, to find the one that is refused
        self.refused = 0
        self.last_refusal = ""
        self.stop_requested = False

    def send(self, data: bytes) -> int:
        """Send the first frames of `data`, at least one; "" is a heartbeat. Returns the number of bytes that need not be sent
        again. Raises Refused or OSError if they must be."""
        body = _first_frames(data, self._limit, self._at_most)
        try:
            answer = self._server.post(self._opened, body)
        except Refused as refused:
            if refused.status not in (413, 422) or not body:
                raise
            count = sum(1 for _ in ends(body))
            if count > 1:
                self._at_most = count // 2
                return 0
            self.refused += 1
            self.last_refusal = str(refused)
            return len(body)
        self.stop_requested = answer.stop_requested
        self._at_most = min(self._records, 2 * self._at_most)
        return len(body)


def _positive(value: Any, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else default


def _first_frames(data: bytes, limit: int, count: int) -> bytes:
    """At most `count` frames of at most `limit` bytes together, but at least the first one."""
    found = 0
    for number, end in enumerate(ends(data)):
        if number == count or (number and end > limit):
            break
        found = end
    return data[:found]


class Uplink:
    """Sends what is in the outbox while the program trains.

    say: receives sentences for the terminal. opened: what the server answered; None before. failure: why the last request
    failed, in words; "" if it did not. given_up: the server has refused for good. sent: bytes of the outbox that are stored.
    """

    def __init__(
        self, outbox: Outbox, opening: dict[str, Any], url: str, token: str | None, say: Callable[[str], None], *, known: bool
    ) -> None:
        self._outbox, self._opening, self._say, self._known = outbox, dict(opening), say, known
        self._server = Server(url, token)
        self.opened: Opened | None = None
        self.failure, self.given_up, self.stop_requested = "", False, False
        self.sent = 0
        self._frames: Frames | None = None
        self._wake, self._closing = threading.Event(), False
        self._first_answer = threading.Event()
        self._reported: set[str] = set()
        self._reopen = False
        self._thread = threading.Thread(target=self._work, name="stablessm-uplink", daemon=True)
        self._thread.start()

    def wait_for_answer(self, seconds: float) -> bool:
        """Wait until the server has answered or failed for the first time."""
        return self._first_answer.wait(seconds)

    def open_again(self, opening: dict[str, Any]) -> None:
        """Open the run once more, with another request. What the server has stored stays."""
        self._opening, self._reopen = dict(opening), True
        self._wake.set()

    def close(self, seconds: float) -> bool:
        """Send what is left for at most `seconds`, and end. True if everything is stored."""
        self._closing = True
        self._wake.set()
        self._thread.join(seconds)
        return not self.given_up and self.sent >= self._outbox.size and self.opened is not None

    @property
    def last_refusal(self) -> str:
        """Why the server refused a frame for good; "" if it refused none."""
        return "" if self._frames is None else self._frames.last_refusal

    @property
    def refused_frames(self) -> int:
        """Frames that the server refused for good."""
        return 0 if self._frames is None else self._frames.refused

    def _work(self) -> None:
        pause, heard = 0.0, monotonic()
        while not self.given_up:
            self._wake.wait(pause if pause else 0.0 if self._closing else SEND_SECONDS)
            self._wake.clear()
            try:
                if self.opened is None or self._reopen:
                    self._open()
                    heard = monotonic()
                pause = 0.0
                data = self._outbox.read(self.sent, BODY_BYTES)
                if data or monotonic() - heard >= HEARTBEAT_SECONDS:
                    self._send(data)
                    heard = monotonic()
                elif self._closing and not self._reopen:
                    break
                if len(data) and self.sent < self._outbox.size:
                    self._wake.set()
            except Refused as refused:
                pause = self._after_refusal(refused, pause)
            except OSError as error:
                self.failure = f"{self._server.url} does not answer ({error.strerror or error})"
                self._known = True  # the request may have arrived
                pause = min(LONGEST_PAUSE, max(0.25, 2 * pause))
            except Exception as error:  # noqa: BLE001 - an error of ours must not end the program
                self._give_up(f"the sender failed: {error!r}")
            self._first_answer.set()
            if self._closing and pause:
                pause = min(pause, 0.5)
        self._first_answer.set()
        self._server.close()

    def _open(self) -> None:
        reopen, self._reopen = self._reopen, False  # first, so that an `open_again` during the request is not forgotten
        opening = self._opening
        if self._known or reopen:
            opening = opening | {"resume": "must" if opening.get("resume") == "must" else "allow"}
        if self.opened is not None:
            opening = opening | {"from_step": None}  # done already; the steps of this process stay
        try:
            self.opened = self._server.open_run(opening)
        except (Refused, OSError):
            self._reopen = self._reopen or reopen
            raise
        self.failure = ""
        self._frames = Frames(self._server, self.opened)
        if opening.get("from_step") is not None:
            self._outbox.drop_from_step()

    def _send(self, data: bytes) -> None:
        assert self._frames is not None
        before = self._frames.refused
        self.sent += self._frames.send(data)
        self.stop_requested, self.failure = self._frames.stop_requested, ""
        self._outbox.release(self.sent)
        if self._frames.refused > before:
            self._say_once(f"the server can never store some of the numbers ({self._frames.last_refusal})")

    def _after_refusal(self, refused: Refused, pause: float) -> float:
        if refused.transient:
            self.failure = f"{self._server.url} is not ready ({refused})"
            return refused.retry_after or min(LONGEST_PAUSE, max(0.25, 2 * pause))
        reasons = {
            401: "it does not accept the token",
            403: f"the token may not report this run ({refused})",
            404: f"it does not know how to receive this run ({refused})",
            409: f"another process reports this run now, or its id is taken ({refused})",
        }
        self._give_up(f"{self._server.url} refuses this run: {reasons.get(refused.status, str(refused))}")
        return 0.0

    def _give_up(self, why: str) -> None:
        self.failure, self.given_up = why, True
        self._say_once(f"{why}; nothing more is sent")

    def _say_once(self, sentence: str) -> None:
        if sentence not in self._reported:
            self._reported.add(sentence)
            self._say(sentence)
