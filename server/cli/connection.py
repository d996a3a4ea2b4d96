"""What a command works on: a server over REST, or the settings and the database of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from server.database.connection import Database
    from server.settings import Settings
    from stablessm_core.client import Client


def connect(data_dir: Path | None) -> Client:
    """A client of the server that STABLESSM_URL names, else of the one of this data directory."""
    from stablessm_core.client import Client, find_server

    return Client(*find_server(data_dir))


def settings(*, no_auth: bool = False, **options: Any) -> Settings:
    """The settings by the options of a command, the environment and the defaults, in this order."""
    from server.settings import Settings

    return Settings.from_environment(auth=not no_auth, **options)


@contextmanager
def open_database(settings: Settings) -> Iterator[Database]:
    from server.database.connection import Database

    database = Database(settings.database_url)
    try:
        yield database
    finally:
        database.close()
