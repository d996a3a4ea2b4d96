"""The client reaches everything that the OpenAPI document lists: each method is called, and what it asked for is noted."""

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

# what a parameter of a method is given, by its name; all others have defaults
ARGUMENTS: dict[str, Any] = {
    "config": BODY, "base": BODY, "grid": {"train.seed": [1]}, "run_id": 1, "sweep_id": 1, "token_id": 99, "webhook_id": 99,
    "user_id": 0, "name": "train/loss", "names": ["train/loss"], "chart": "loss", "format": "csv", "scope": "read",
    "url": "https://hooks.example.org/x", "events": ["run"], "step": 1, "path": Path("/nowhere/checkpoint"),
    "archive": Path(__file__), "action": "show", "run_ids": [1], "query": "", "view_id": 99,
}  # fmt: skip
NO_ENDPOINTS = ("close", "request", "get", "send", "pages", "lines", "streamed")


class Noting(InProcess):
    """Notes the endpoint of every request, as the OpenAPI document has it; a live stream would take a real connection."""

    def __init__(self, app: FastAPI) -> None:
        super().__init__(app)
        self.asked: set[tuple[str, str]] = set()
        # a series' name has slashes
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
def transport(sqlite_url: str, tmp_path: Path) -> Iterator[Noting]:
    database = Database(sqlite_url)
    transport = Noting(application(sqlite_url, tmp_path))
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


def test_every_endpoint_has_a_method_of_the_client(transport: Noting) -> None:
    client = Client("http://127.0.0.1:8000", TOKEN, transport=transport)
    ended = ["cancel", "delete"]  # last: what they end the others look at
    for name in sorted(methods(), key=lambda name: (name in ended, name)):
        for run_id in (1, None):  # some have another endpoint without one
            call(client, name, run_id)
    document = transport.app.openapi()
    endpoints = {(method.upper(), path) for path, operations in document["paths"].items() for method in operations}
    assert endpoints - transport.asked == set(), "no method of Client reaches these"
    assert not {path for _, path in transport.asked} - set(document["paths"]), "the document does not list these"


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
        pass  # refused for what it was given; it was asked
