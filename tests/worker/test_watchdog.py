"""A silent database delays a caller at most for the limit, no matter how often it falls silent."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from sqlalchemy import make_url, text

from server.database.connection import Database
from server.database.watchdog import guard
from tests.chaos.proxy import Proxy
from worker.writer import DATABASE_AWAY

LIMIT = 0.5
pytestmark = pytest.mark.postgres


@pytest.fixture
def proxy(postgres_url: str) -> Iterator[Proxy]:
    url = make_url(postgres_url)
    proxy = Proxy((url.host or "127.0.0.1", url.port or 5432))
    yield proxy
    proxy.close()


@pytest.fixture
def database(postgres_url: str, proxy: Proxy) -> Iterator[Database]:
    database = Database(make_url(postgres_url).set(host="127.0.0.1", port=proxy.port).render_as_string(hide_password=False))
    guard(database, LIMIT)
    yield database
    database.close()


def _ask(database: Database) -> None:
    with database.read() as session:
        session.execute(text("SELECT 1"))


def _answers(database: Database) -> None:
    """Wait until the database answers. If the machine pauses for half a second, the watchdog also ends a good connection."""
    deadline = time.monotonic() + 90
    while True:
        try:
            return _ask(database)
        except DATABASE_AWAY:
            assert time.monotonic() < deadline


def _fails_soon(database: Database) -> None:
    begun = time.monotonic()
    with pytest.raises(DATABASE_AWAY):
        _ask(database)
    assert time.monotonic() - begun < 90, "the watchdog did not end the call"


def test_a_pooled_connection_that_became_silent_is_ended_when_it_is_taken(database: Database, proxy: Proxy) -> None:
    _answers(database)  # afterwards one connection is in the pool
    proxy.become("silent")
    _fails_soon(database)
    proxy.become("pass")
    _answers(database)


def test_a_statement_without_a_response_is_cut_off(database: Database, proxy: Proxy) -> None:
    def ask_twice() -> None:
        with database.write() as session:
            session.execute(text("SELECT 1"))
            proxy.become("silent")
            session.execute(text("SELECT 2"))

    begun = time.monotonic()
    with pytest.raises(DATABASE_AWAY):
        ask_twice()
    assert time.monotonic() - begun < 90
    proxy.become("pass")
    _answers(database)


def test_a_new_connection_without_a_response_is_cut_off(database: Database, proxy: Proxy) -> None:
    proxy.become("silent")
    _fails_soon(database)
    proxy.become("pass")
    _answers(database)


def test_the_watchdog_keeps_working_after_connections_were_lost_in_use(database: Database, proxy: Proxy) -> None:
    def lose() -> None:
        with database.write() as session:
            session.execute(text("SELECT 1"))
            proxy.cut()
            session.execute(text("SELECT 2"))

    for _ in range(3):
        with pytest.raises(DATABASE_AWAY):
            lose()
    time.sleep(3 * LIMIT)  # long enough for the watchdog to check the lost connections
    _answers(database)
    proxy.become("silent")
    _fails_soon(database)
