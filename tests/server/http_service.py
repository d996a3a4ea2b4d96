"""The real application for HTTP tests: in this process for REST, behind a real uvicorn for streams."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI

from server.http.app import create_app
from server.http.serving import Server, make_server
from server.settings import Settings

TOKEN = "token-of-the-tests-0123456789"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
BODY = {"task": {"name": "polynomial_memory"}}


def settings(url: str, folder: Path, **more: Any) -> Settings:
    return Settings(**{"data_dir": folder / "state", "database_url": url, "token": TOKEN} | more)


def application(url: str, folder: Path, **more: Any) -> FastAPI:
    return create_app(settings(url, folder, **more))


class InProcess(httpx.BaseTransport):
    """Passes requests to an application in the event loop of a separate thread, with startup and shutdown as in production."""

    def __init__(self, app: FastAPI) -> None:
        self.app = app
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.lifespan = app.router.lifespan_context(app)
        self._wait(self.lifespan.__aenter__())

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return self._wait(self._ask(request.method, request.url, request.headers, request.read()))

    async def _ask(self, method: str, url: httpx.URL, headers: httpx.Headers, content: bytes) -> httpx.Response:
        transport = httpx.ASGITransport(self.app, client=("127.0.0.1", 50_000))
        answer = await transport.handle_async_request(httpx.Request(method, url, headers=headers, content=content))
        body = b"".join([chunk async for chunk in answer.aiter_raw()])
        return httpx.Response(answer.status_code, headers=answer.headers, content=body)

    def close(self) -> None:
        self._wait(self.lifespan.__aexit__(None, None, None))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    def _wait(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(120)


def client_of(app: FastAPI, *, token: str | None = TOKEN) -> httpx.Client:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return httpx.Client(transport=InProcess(app), base_url="http://127.0.0.1:8000", headers=headers)


def error_of(answer: httpx.Response, status: int) -> dict[str, Any]:
    """The error of a refused request. Asserts the status and the common structure of the body."""
    assert answer.status_code == status, (answer.status_code, answer.text[:500])
    body = answer.json()
    assert set(body) == {"error"}
    assert {"code", "message"} <= set(body["error"]) <= {"code", "message", "field", "allowed"}
    assert all(isinstance(value, str) and value for value in body["error"].values())
    error: dict[str, Any] = body["error"]
    return error


@contextmanager
def running(url: str, folder: Path, *, listen: int = 0, **more: Any) -> Iterator[tuple[str, Server]]:
    """(address, server) of the application behind uvicorn, in a thread of this process."""
    listener = socket.create_server(("127.0.0.1", listen))
    port = listener.getsockname()[1]
    server = make_server(settings(url, folder, port=port, **more))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{port}"
    try:
        while not server.started:
            assert thread.is_alive(), "the server ended during startup"
            threading.Event().wait(0.01)
        yield address, server
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive(), "the server did not stop"


def frames(answer: httpx.Response) -> Iterator[dict[str, Any]]:
    """Events of a stream as {"event", "id", "data" (decoded)}, without comments and the retry line."""
    event: dict[str, Any] = {}
    for line in answer.iter_lines():
        if line:
            name, _, value = line.partition(":")
            event[name] = value.removeprefix(" ")
        elif "data" in event:
            yield {"event": event["event"], "id": event.get("id"), "data": json.loads(event["data"])}
            event = {}
        else:
            event = {}
