"""Opens the SQLite databases of other tools for reading."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MAGIC = b"SQLite format 3\0"
# what reading a damaged database raises; sqlite3 cannot decode every message about damage
DAMAGE = sqlite3.Error, UnicodeDecodeError


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that cannot write. Rows are read by the names of their columns. Raises sqlite3.Error."""
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
    connection.row_factory = sqlite3.Row
    connection.text_factory = lambda data: data.decode(errors="replace")
    try:
        yield connection
    finally:
        connection.close()


def columns(path: Path) -> dict[str, set[str]]:
    """The columns of each table; none if the database cannot be read."""
    try:
        with opened(path) as connection:
            tables = [row["name"] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            return {name: columns_of(connection, name) for name in tables}
    except DAMAGE:
        return {}


def columns_of(connection: sqlite3.Connection, table: str) -> set[str]:
    """The columns of a table; none if it does not exist."""
    return {row["name"] for row in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))}
