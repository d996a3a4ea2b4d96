"""Fixtures of the data half's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from server.db import Database


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """A migrated database, on both engines in turn."""
    database = Database(database_url)
    yield database
    database.close()


@pytest.fixture
def sqlite(sqlite_url: str) -> Iterator[Database]:
    """A migrated SQLite database."""
    database = Database(sqlite_url)
    yield database
    database.close()
