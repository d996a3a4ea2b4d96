"""The web server process: uvicorn with the settings that keep small answers fast and a shutdown short."""

from __future__ import annotations

import logging
import logging.config
import resource
import socket
import sys
from collections.abc import Callable
from typing import Any

import uvicorn
from sqlalchemy.exc import DBAPIError

from server.access.scopes import load_or_create_token
from server.database.connection import Database
from server.http.app import create_app
from server.http.protocol import Protocol
from server.live.broadcaster import Broadcaster
from server.settings import Settings

log = logging.getLogger("stablessm.server")

SHUTDOWN_SECONDS = 5
MAX_CONNECTIONS = 2000
FILES = MAX_CONNECTIONS + 512  # a connection each, and what the database, the assets and the broker need
LOGGING: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"()": "server.logs.LineFormatter"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line", "stream": "ext://sys.stderr"}},
    "root": {"handlers": ["stderr"], "level": "WARNING"},
    "loggers": {"stablessm": {"level": "INFO"}, "uvicorn.error": {"level": "WARNING"}},
}


class Server(uvicorn.Server):
    """Ends the live streams before it waits for connections, which would otherwise never close."""

    def __init__(self, config: uvicorn.Config, broadcaster: Broadcaster) -> None:
        super().__init__(config)
        self.broadcaster = broadcaster
        self.on_listening: Callable[[], None] = lambda: None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        for listener in sockets or []:
            # asyncio switches Nagle's algorithm off only on connections of sockets it made itself; left on, every small
            # answer on a kept connection takes 43 ms. Accepted connections inherit the option.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await super().startup(sockets)
        if self.started:
            self.on_listening()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.broadcaster.stop()
        await super().shutdown(sockets)


def allow_open_files() -> None:
    """As many open files as MAX_CONNECTIONS take, where the machine lets a process ask for them: 1,024 is a usual default."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def make_server(settings: Settings) -> Server:
    """The server for these settings, not yet started. Raises ValueError when they would let strangers in."""
    app = create_app(settings)
    allow_open_files()
    config = uvicorn.Config(
        app, host=settings.host, port=settings.port, http=Protocol, ws="none", loop="auto", lifespan="on", log_config=LOGGING,
        access_log=False, server_header=False, proxy_headers=False, limit_concurrency=MAX_CONNECTIONS, timeout_keep_alive=5,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )  # fmt: skip
    return Server(config, app.state.broadcaster)


def serve(settings: Settings, fd: int | None = None) -> int:
    """Serve until a signal; `fd` is a listening socket that was opened by the parent."""
    server = make_server(settings)
    _check_schema(settings)
    if fd is None:  # otherwise the parent says it
        server.on_listening = lambda: announce(settings)
    try:
        server.run(sockets=[socket.socket(fileno=fd)] if fd is not None else None)
    except KeyboardInterrupt:
        pass  # uvicorn raises the signal again once it has shut down
    return 0 if server.started else 1


def announce(settings: Settings) -> None:
    """Say where the server listens and where its token is: with the token on a terminal, as `up` does, never in a log."""
    url = f"http://{f'[{settings.host}]' if ':' in settings.host else settings.host}:{settings.port}/"
    file = settings.data_dir / "token"
    if sys.stdout.isatty():
        token = (settings.token or load_or_create_token(file)) if settings.auth else None
        sys.stdout.write(f"StableSSM is at {url}{f'?token={token}' if token else ''}\n")
        return
    where = f"the file {file}" if settings.auth else "not asked for (--no-auth)"
    where = "that of STABLESSM_TOKEN" if settings.auth and settings.token else where
    log.info("listening on %s, the token is %s", url, where)


def _check_schema(settings: Settings) -> None:
    """Raises SchemaMismatch; a database that is away now is not asked: /readyz says when it is there and fits."""
    database = Database(settings.database_url)
    try:
        database.check_schema()
    except DBAPIError as error:
        log.warning("the database does not answer yet: %s", str(error).partition("\n")[0])
    finally:
        database.close()
