"""Fixtures of the server's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from server.database import connection
from server.database.connection import Database


@pytest.fixture(autouse=True)
def _patient_databases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengthens the service's timeouts, because locks and responses may take longer on a busy machine."""
    monkeypatch.setattr("server.http.metrics.DATABASE_SECONDS", 60.0)
    monkeypatch.setattr("server.http.api.service.READY_SECONDS", 60.0)
    monkeypatch.setattr("server.access.token_cache.WAIT_SECONDS", 20.0)
    monkeypatch.setattr(connection, "BUSY_SECONDS", 100.0)
    monkeypatch.setattr(
        connection,
        "POSTGRES_OPTIONS",
        connection.POSTGRES_OPTIONS.replace("=30s", "=100s").replace("lock_timeout=10s", "lock_timeout=100s"),
    )


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """A migrated database. Each test runs with both engines."""
    database = Database(database_url)
    yield database
    database.close()


@pytest.fixture
def sqlite(sqlite_url: str) -> Iterator[Database]:
    """A migrated SQLite database."""
    database = Database(sqlite_url)
    yield database
    database.close()
