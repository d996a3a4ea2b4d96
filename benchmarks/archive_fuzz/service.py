"""A server in this process, on a SQLite database, without its background threads."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from sqlalchemy import delete

from server.database.connection import Database
from server.database.models import Run, Sweep
from server.http.app import create_app
from server.settings import Settings

TOKEN = "token-of-the-archive-fuzz-0123456789"


class Service:
    """The server's database, and a client whose requests raise the errors that the server does not catch."""

    def __init__(self, settings: Settings) -> None:
        app = create_app(settings)
        self.database: Database = app.state.database
        self.database.migrate()
        self._loop = asyncio.new_event_loop()
        transport = httpx.ASGITransport(app, client=("127.0.0.1", 50_000))
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        self._client = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000", headers=bearer)

    def get(self, address: str, **headers: str) -> httpx.Response:
        return self._loop.run_until_complete(self._client.get(address, headers=headers))

    def post_archive(self, content: bytes) -> httpx.Response:
        headers = {"Content-Type": "application/x-tar"}
        return self._loop.run_until_complete(self._client.post("/api/imports", content=content, headers=headers))

    def clear(self) -> None:
        """Delete all runs and sweeps."""
        with self.database.write() as session:
            session.execute(delete(Run))
            session.execute(delete(Sweep))

    def close(self) -> None:
        self._loop.run_until_complete(self._client.aclose())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()
        self.database.close()


@contextmanager
def service(folder: Path) -> Iterator[Service]:
    """A server with a new database in this folder."""
    made = Service(Settings(data_dir=folder / "state", database_url=f"sqlite:///{folder / 'fuzz.db'}", token=TOKEN))
    try:
        yield made
    finally:
        made.close()
