"""The client covers every endpoint of the OpenAPI document: the tests call each method and record its requests."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from server.database.connection import Database
from stablessm_core.client import ApiError, Client
from tests.server.http_service import BODY, TOKEN, InProcess, application
from tests.server.recording import Recording, claim

pytestmark = pytest.mark.slow

# arguments by parameter name; all other parameters have defaults
ARGUMENTS: dict[str, Any] = {
    "config": BODY, "base": BODY, "grid": {"train.seed": [1]}, "run_id": 1, "sweep_id": 1, "token_id": 99, "webhook_id": 99,
    "user_id": 0, "name": "train/loss", "names": ["train/loss"], "chart": "loss", "format": "csv", "scope": "read",
    "url": "https://hooks.example.org/x", "events": ["run"], "step": 1, "path": Path("/nowhere/checkpoint"),
    "archive": Path(__file__), "action": "show", "run_ids": [1], "query": "", "view_id": 99, "report": "table5",
    "number": 0, "silence_id": 99, "until": 1e10,
}  # fmt: skip
# programs that report runs speak to these (stablessm_core.report.link, docs/protocol.md)
OF_REPORTING_PROGRAMS = {
    ("POST", "/api/ingest/runs"), ("POST", "/api/ingest/runs/{run_id}/records"), ("POST", "/api/ingest/runs/{id}/compare"),
}  # fmt: skip
NO_ENDPOINTS = ("close", "request", "get", "send", "pages", "lines", "streamed")


class RecordingTransport(InProcess):
    """Records the OpenAPI path of every request. Refuses live streams, which would need a real connection."""

    def __init__(self, app: FastAPI) -> None:
        super().__init__(app)
        self.asked: set[tuple[str, str]] = set()
        # the name of a series contains slashes
        self.endpoints = {
            path: re.compile(re.sub(r"{\w+}", "[^/]+", path.replace("/{name}", "/.+"))) for path in app.openapi()["paths"]
        }

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        fitting = [path for path, pattern in self.endpoints.items() if pattern.fullmatch(request.url.path)]
        self.asked.add((request.method, min(fitting, key=lambda path: path.count("{"), default=request.url.path)))
        if request.url.path.endswith("/stream"):
            return httpx.Response(404, json={"error": {"code": "not_found", "message": "not in this test"}})
        return super().handle_request(request)


@pytest.fixture
def transport(sqlite_url: str, tmp_path: Path) -> Iterator[RecordingTransport]:
    database = Database(sqlite_url)
    transport = RecordingTransport(application(sqlite_url, tmp_path))
    with Client("http://127.0.0.1:8000", TOKEN, transport=transport) as client:
        client.submit(BODY)
        client.submit_sweep(BODY, {"train.seed": [1]})
        Recording(database, claim(database), width=4).write(5)
        transport.asked.clear()
        yield transport
    database.close()


def methods() -> dict[str, Callable[..., Any]]:
    found = inspect.getmembers(Client, inspect.isfunction)
    return {name: method for name, method in found if not name.startswith("_") and name not in NO_ENDPOINTS}


def test_the_client_has_a_method_for_every_endpoint(transport: RecordingTransport) -> None:
    client = Client("http://127.0.0.1:8000", TOKEN, transport=transport)
    ended = ["cancel", "delete"]  # called last, because they end or delete objects that the other calls read
    for name in sorted(methods(), key=lambda name: (name in ended, name)):
        for run_id in (1, None):  # some methods call another endpoint without a run id
            call(client, name, run_id)
    document = transport.app.openapi()
    endpoints = {(method.upper(), path) for path, operations in document["paths"].items() for method in operations}
    assert endpoints - transport.asked == OF_REPORTING_PROGRAMS, "endpoints that no method of Client calls"
    assert not {path for _, path in transport.asked} - set(document["paths"]), (
        "called endpoints that are missing from the OpenAPI document"
    )


def call(client: Client, name: str, run_id: int | None) -> None:
    parameters = inspect.signature(getattr(client, name)).parameters.values()
    needed = {p.name: ARGUMENTS[p.name] for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD}
    if run_id is not None and any(p.name == "run_id" for p in parameters):
        needed["run_id"] = run_id
    if name == "watch":
        needed["patience"] = 0.0
    try:
        answer = getattr(client, name)(**needed)
        if inspect.isgenerator(answer):
            next(answer, None)
    except (ApiError, FileNotFoundError):
        pass  # the server refused the arguments, but the endpoint was called
