"""A Redis that keeps its connections but stays silent is detected, reported, and used again once it answers."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import httpx
import pytest

from server.database.connection import Database
from server.lifecycle.event_wakeups import publisher
from server.lifecycle.worker_wakeups import _sender, wake_workers
from server.live.listener import SILENT_SECONDS
from tests.chaos.proxy import Proxy
from tests.chaos.services import Missing, Redis
from tests.server.http_service import BEARER, frames, running
from tests.server.recording import claimed

pytestmark = [pytest.mark.long, pytest.mark.redis]
NOTICED_SECONDS = 10.0


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory, unavailable: Callable[[str], NoReturn]) -> Iterator[Redis]:
    try:
        redis = Redis(tmp_path_factory.mktemp("redis") / "state")
    except Missing as error:
        unavailable(str(error))
    redis.start()
    yield redis
    redis.kill()


def within(seconds: float, what: str, true: Callable[[], bool]) -> float:
    """Wait until `true` returns True, and return the waiting time. Fails after `seconds`."""
    begun = time.monotonic()
    while not true():
        assert time.monotonic() - begun < seconds, f"no {what} within {seconds:g} s"
        time.sleep(0.05)
    return time.monotonic() - begun


def live(address: str) -> str:
    return str(httpx.get(f"{address}/readyz", headers=BEARER, timeout=120).json()["checks"]["live"])


def test_the_tolerated_silence_is_shorter_than_the_documented_detection_time() -> None:
    assert SILENT_SECONDS < NOTICED_SECONDS - 2


@pytest.mark.postgres
@pytest.mark.parametrize("fault", ["stopped", "swallowed"])
def test_a_silent_redis_is_detected_reported_and_used_again_once_it_answers(
    postgres_url: str, redis_server: Redis, tmp_path: Path, fault: str
) -> None:
    database, proxy = Database(postgres_url), Proxy(("127.0.0.1", redis_server.port))
    claimed(database)
    said: list[bool] = []

    def view(address: str) -> None:
        with httpx.stream("GET", f"{address}/api/runs/1/stream", headers=BEARER, timeout=120) as answer:
            said.extend(event["data"]["push"] for event in frames(answer) if event["event"] == "live")

    def silence(on: bool) -> None:
        if fault == "swallowed":
            proxy.become("silent" if on else "pass")
        else:
            redis_server.signal(signal.SIGSTOP if on else signal.SIGCONT)

    with running(postgres_url, tmp_path, broker_url=f"redis://127.0.0.1:{proxy.port}/0") as (address, _):
        within(60, "push", lambda: live(address) == "push")
        threading.Thread(target=view, args=(address,), daemon=True).start()
        silence(True)
        try:
            within(NOTICED_SECONDS, "polling", lambda: live(address) == "polling")
            within(2, "word of it on the page", lambda: said[-1:] == [False])
            assert httpx.get(f"{address}/metrics", headers=BEARER, timeout=120).text.count("\nstablessm_live_push 0.0\n") == 1
            if fault == "stopped":
                time.sleep(4)  # a stopped Redis still accepts connections but sends no notifications
                assert live(address) == "polling"
        finally:
            silence(False)
        within(NOTICED_SECONDS, "push again", lambda: live(address) == "push")
        within(2, "word of it on the page", lambda: said[-1:] == [True])
    proxy.close()
    database.close()


def test_publishing_wake_ups_never_blocks_and_its_failure_is_logged_once(
    sqlite_url: str, redis_server: Redis, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.lifecycle.event_wakeups.PAUSE_SECONDS", 0.2)
    database, url = Database(sqlite_url), f"redis://127.0.0.1:{redis_server.port}/0"
    publish = publisher(database, url)
    publish(1)
    redis_server.signal(signal.SIGSTOP)
    try:
        calls, until = 0, time.monotonic() + 4
        while time.monotonic() < until:
            publish(1)
            calls += 1
            time.sleep(0.01)
        lost = [record for record in caplog.records if "wake-up" in record.getMessage()]
        assert len(lost) == 1, [record.getMessage() for record in lost]
        assert calls > 80  # a call that waited for Redis would take a second
    finally:
        redis_server.signal(signal.SIGCONT)

    def said_that_it_is_back() -> bool:
        publish(1)
        return any("arrive again" in record.getMessage() for record in caplog.records)

    with caplog.at_level("INFO"):
        within(30, "word that it is back", said_that_it_is_back)
    database.close()


LISTEN = """
import sys, threading
from types import SimpleNamespace
from server.logs import start_logging
from worker.celery_app import listen

class Lanes(SimpleNamespace):
    def __len__(self):
        return 1

start_logging()
listen(sys.argv[1], Lanes(id="woken", stop=threading.Event(), work=lambda: print("woken", flush=True)))
"""


def test_celery_drops_a_silent_broker_logs_this_once_and_reconnects(redis_server: Redis, tmp_path: Path) -> None:
    url, out, log = f"redis://127.0.0.1:{redis_server.port}/1", tmp_path / "out", tmp_path / "log"

    def woken(more_than: int) -> bool:
        wake_workers(url)
        return out.read_text().count("woken") > more_than

    with out.open("wb") as stdout, log.open("wb") as stderr:
        worker = subprocess.Popen([sys.executable, "-c", LISTEN, url], stdout=stdout, stderr=stderr)
    try:
        within(90, "worker that listens", lambda: woken(0))
        redis_server.signal(signal.SIGSTOP)
        within(NOTICED_SECONDS, "word of it", lambda: "Connection to broker lost" in log.read_text())
        within(30, "attempt to come back", lambda: "Cannot connect" in log.read_text())
        time.sleep(6)  # the next attempt begins after 2 s and takes 3 s
        assert log.read_text().count("Cannot connect") == 1, log.read_text()
        before = out.read_text().count("woken")
        redis_server.signal(signal.SIGCONT)
        within(30, "worker that listens again", lambda: woken(before))
    finally:
        redis_server.signal(signal.SIGCONT)
        worker.kill()
        worker.wait()


def test_failed_worker_wake_ups_are_logged_once_per_cause(caplog: pytest.LogCaptureFixture) -> None:
    url = "redis://127.0.0.1:1/7"
    for _ in range(2):
        wake_workers(url)
    _sender(url).wait()
    lost = [record for record in caplog.records if "wake-up" in record.getMessage()]
    assert (len(lost), _sender(url).lost) == (1, 2), [record.getMessage() for record in lost]
