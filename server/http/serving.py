"""The web server process: uvicorn with settings that make small responses fast and the shutdown short."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import logging.config
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
from server.logs import log_uncaught
from server.open_files import SERVER_NEEDS, allow_open_files
from server.settings import Settings

log = logging.getLogger("stablessm.server")

SHUTDOWN_SECONDS = 5
MAX_CONNECTIONS = 2000
FILES = MAX_CONNECTIONS + 512  # number of open files: one per connection, and some for the database, the assets and the broker
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # options of glibc's mallopt
KEPT_BYTES = {M_TRIM_THRESHOLD: 32 << 20, M_MMAP_THRESHOLD: 8 << 20}
LOGGING: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"()": "server.logs.LineFormatter"}},
    "handlers": {"stderr": {"class": "server.logs.CountingHandler", "formatter": "line", "stream": "ext://sys.stderr"}},
    "root": {"handlers": ["stderr"], "level": "WARNING"},
    "loggers": {"stablessm": {"level": "INFO"}, "uvicorn.error": {"level": "WARNING"}},
}


class Server(uvicorn.Server):
    """Ends the live streams on shutdown, because their connections would otherwise never close."""

    def __init__(self, config: uvicorn.Config, broadcaster: Broadcaster) -> None:
        super().__init__(config)
        self.broadcaster = broadcaster
        self.on_listening: Callable[[], None] = lambda: None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        for listener in sockets or []:
            # asyncio disables Nagle's algorithm only on sockets that it created itself. With Nagle's algorithm, every small
            # response on a keep-alive connection takes 43 ms. Accepted connections inherit this socket option.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await super().startup(sockets)
        if self.started:
            self.on_listening()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.broadcaster.stop()
        await super().shutdown(sockets)


def make_server(settings: Settings) -> Server:
    """Create the server for these settings without starting it. Raises ValueError for settings that would give strangers
    access, and TooFewFiles."""
    allow_open_files(FILES, SERVER_NEEDS, "the server")
    app = create_app(settings)
    config = uvicorn.Config(
        app, host=settings.host, port=settings.port, http=Protocol, ws="none", loop="auto", lifespan="on", log_config=LOGGING,
        access_log=False, server_header=False, proxy_headers=False, limit_concurrency=MAX_CONNECTIONS, timeout_keep_alive=5,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )  # fmt: skip
    return Server(config, app.state.broadcaster)


def serve(settings: Settings, fd: int | None = None) -> int:
    """Serve until a signal arrives and return the exit status. `fd`: a listening socket from the parent process."""
    _keep_freed_memory()
    server = make_server(settings)
    log_uncaught()
    _check_schema(settings)
    if fd is None:  # otherwise the parent prints the address
        server.on_listening = lambda: announce(settings)
    gc.freeze()  # a full collection that visited these 200,000 objects would delay every request by 0.1 to 0.3 s
    try:
        server.run(sockets=[socket.socket(fileno=fd)] if fd is not None else None)
    except KeyboardInterrupt:
        pass  # uvicorn raises the signal again once it has shut down
    return 0 if server.started else 1


def _keep_freed_memory() -> None:
    """Make glibc keep freed memory. By default, a post of a megabyte spends a sixth of its time on returning its memory to the
    system and fetching it again."""
    with contextlib.suppress(AttributeError, OSError):  # another C library
        for option, value in KEPT_BYTES.items():
            ctypes.CDLL(None).mallopt(option, value)


def announce(settings: Settings) -> None:
    """On a terminal, print the server's address with the token. Otherwise, log the address and where the token is found."""
    url = f"http://{f'[{settings.host}]' if ':' in settings.host else settings.host}:{settings.port}/"
    file = settings.data_dir / "token"
    if sys.stdout.isatty():
        token = (settings.token or load_or_create_token(file)) if settings.auth else None
        sys.stdout.write(f"StableSSM is at {url}{f'?token={token}' if token else ''}\n")
        return
    where = f"the file {file}" if settings.auth else "not required (--no-auth)"
    where = "that of STABLESSM_TOKEN" if settings.auth and settings.token else where
    log.info("listening on %s, the token is %s", url, where)


def _check_schema(settings: Settings) -> None:
    """Check that the database schema fits this code. Raises SchemaMismatch. If the database does not answer, the failure is
    only logged. /readyz reports when the database is ready."""
    database = Database(settings.database_url)
    try:
        database.check_schema()
    except DBAPIError as error:
        log.warning("the database does not answer yet: %s", str(error).partition("\n")[0])
    finally:
        database.close()
