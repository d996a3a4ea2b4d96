"""The database of this machine, for commands that work without a server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click
from sqlalchemy.exc import DBAPIError

from server.database.connection import Database
from server.settings import Settings


@contextmanager
def open_database(settings: Settings) -> Iterator[Database]:
    """Open the database of these settings and close it at the end. Database errors become a ClickException of one line."""
    database = Database(settings.database_url)
    try:
        yield database
    except DBAPIError as error:
        raise click.ClickException(f"the database: {str(error.orig).partition(chr(10))[0][:300]}") from None
    finally:
        database.close()
