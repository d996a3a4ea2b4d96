"""A program can compare its numbers with the stored ones: nothing is stored, and nobody learns about runs of others."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.database.connection import Database
from stablessm_core.report.frames import CONTENT_TYPE, frame
from stablessm_core.report.messages import EndMessage, MetricsMessage, to_bytes
from tests.server.http_service import application, client_of

ID = str(uuid.uuid4())
FRAMES = {"Content-Type": CONTENT_TYPE}
NAN, INF = float("nan"), float("inf")


@pytest.fixture
def client(sqlite: Database, tmp_path: Path) -> Iterator[httpx.Client]:
    with client_of(application(sqlite.url, tmp_path)) as client:
        assert client.post("/api/ingest/runs", json={"id": ID, "started_at": 1e9}).status_code == 201
        body = body_of([0, 1, 2, 5], {"a": [1.0, NAN, INF, -0.0], "b": [1.0, 2.0, 3.0, 4.0]})
        end = frame(to_bytes(EndMessage("finished", "", ended_at=1e9 + 60)))
        stored = client.post("/api/ingest/runs/1/records", content=body + end, headers=FRAMES | {"X-Attempt": "1"})
        assert stored.status_code == 200, stored.text
        yield client


def body_of(steps: list[int], values: dict[str, Any]) -> bytes:
    return frame(to_bytes(MetricsMessage(steps, values)))


def compare(client: httpx.Client, body: bytes, of: str = ID) -> dict[str, Any]:
    answer = client.post(f"/api/ingest/runs/{of}/compare", content=body, headers=FRAMES)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_equal_numbers_do_not_differ_and_nothing_is_stored(client: httpx.Client) -> None:
    before = client.get("/api/runs/1").json()
    same = compare(client, body_of([0, 1, 2, 5, 9], {"a": [1.0, NAN, INF, 0.0, 7.0], "new": [1.0] * 5}))
    assert (same["run_id"], same["differing"], same["unknown"], same["last_step"]) == (1, 0, 0, 5)
    assert compare(client, b"")["names"] == ["a", "b"]
    assert client.get("/api/runs/1").json() == before


def test_the_first_different_values_are_named(client: httpx.Client) -> None:
    found = compare(client, body_of([1, 2, 5], {"b": [2.0, INF, 4.5], "a": [0.5, INF, NAN]}))
    assert found["differing"] == 4
    assert [(one["step"], one["name"], one["stored"], one["given"]) for one in found["first"]] == [
        (1, "a", "NaN", 0.5), (2, "b", 3.0, "Infinity"), (5, "a", -0.0, "NaN"), (5, "b", 4.0, 4.5),
    ]  # fmt: skip
    assert compare(client, body_of([0, 5], {"a": [1.0, 0.0]}))["unknown"] == 2


def test_an_unknown_run_and_one_of_another_token(client: httpx.Client) -> None:
    assert compare(client, b"", str(uuid.uuid4()))["run_id"] is None
    assert client.post("/api/ingest/runs/x/compare", content=b"", headers=FRAMES).status_code == 422
    assert client.post(f"/api/ingest/runs/{ID}/compare", content=b"junk", headers=FRAMES).status_code == 422
    other = client.post("/api/tokens", json={"name": "other", "scope": "ingest"}).json()["secret"]
    refused = client.post(f"/api/ingest/runs/{ID}/compare", content=b"", headers=FRAMES | {"Authorization": f"Bearer {other}"})
    assert refused.status_code == 403


def test_a_run_of_the_past_keeps_its_times(client: httpx.Client) -> None:
    run = client.get("/api/runs/1").json()
    assert (run["started_at"], run["finished_at"]) == (1e9, 1e9 + 60)
    assert run["created_at"] > 1e9 + 60
