"""The audit log records every write with its author and response, never contains a secret, and does not slow down reads."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy import event, insert, select
from sqlalchemy.exc import OperationalError

from server.access import audit
from server.access.audit import Audit, audit_list_json, prune
from server.access.throttle import RateLimit
from server.access.tokens import Principal
from server.database.connection import Database
from server.database.models import AuditRow
from tests.server.http_service import BEARER, BODY, TOKEN, application, client_of, error_of

pytestmark = pytest.mark.slow


@pytest.fixture
def app(database_url: str, tmp_path: Path) -> FastAPI:
    return application(database_url, tmp_path)


@pytest.fixture
def client(app: FastAPI) -> Iterator[httpx.Client]:
    with client_of(app) as client:
        yield client


def newest(client: httpx.Client, **query: object) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get("/api/audit", params=query, headers=BEARER).json()["audit"]
    return found


def row(who: str, what: str, status: int, run_id: int | None = None) -> tuple[object, ...]:
    return (who, what, status, run_id)


def test_the_audit_log_records_every_write_with_its_author_and_response_status(client: httpx.Client) -> None:
    before = time.time()
    made = client.post("/api/tokens", json={"name": "ci", "scope": "submit"}).json()
    key = {"Authorization": f"Bearer {made['secret']}"}
    client.post("/api/runs", json=BODY, headers=key)
    client.post("/api/runs/1/clone", headers=key)
    client.patch("/api/runs/1", json={"name": 5}, headers=key)
    client.post("/api/runs/1/cancel", headers=key)
    client.delete("/api/runs/1", headers=key)
    client.delete("/api/runs/1")
    client.post("/api/runs/77/cancel")
    client.put("/api/nothing")
    del client.headers["Authorization"]
    client.post("/api/runs", json=BODY)
    client.post("/api/runs", json=BODY, headers={"Host": "evil.example"})
    client.post("/api/runs", json=BODY, headers=BEARER | {"Origin": "http://evil.example"})
    client.post("/login", data={"token": "wrong"})
    client.post("/login", data={"token": made["secret"]})
    client.get(f"/?token={TOKEN}")
    found = newest(client)
    assert [(r["token_name"], f"{r['method']} {r['path']}", r["status"], r["run_id"]) for r in reversed(found)] == [
        row("settings", "POST /api/tokens", 201),
        row("ci", "POST /api/runs", 201, 1),
        row("ci", "POST /api/runs/1/clone", 201, 1),
        row("ci", "PATCH /api/runs/1", 422, 1),
        row("ci", "POST /api/runs/1/cancel", 200, 1),
        row("ci", "DELETE /api/runs/1", 403, 1),
        row("settings", "DELETE /api/runs/1", 204, 1),
        row("settings", "POST /api/runs/77/cancel", 404, 77),
        row("settings", "PUT /api/nothing", 404),
        row("", "POST /api/runs", 401),
        row("", "POST /api/runs", 421),
        row("", "POST /api/runs", 403),
        row("", "POST /login", 401),
        row("ci", "POST /login", 303),
        row("settings", "GET /", 303),
    ]
    assert {r["address"] for r in found} == {"127.0.0.1"}
    assert all(before <= r["at"] <= time.time() for r in found)
    assert [r["token_id"] for r in found if r["token_name"] == "ci"] == [made["id"]] * 6


def test_read_requests_write_nothing_to_the_audit_log(client: httpx.Client, app: FastAPI) -> None:
    written = []
    event.listen(app.state.database.engine, "before_cursor_execute", lambda _c, _cur, statement, *_: written.append(statement))
    for path in ("/", "/api/runs", "/api/alerts", "/metrics", "/nothing"):
        client.get(path)
    app.state.audit.flush()
    assert [statement for statement in written if "INTO audit" in statement] == []
    assert newest(client) == []


def test_the_audit_log_can_be_read_page_by_page_and_filtered_by_run(client: httpx.Client) -> None:
    client.post("/api/runs", json=BODY)
    for _ in range(6):
        client.patch("/api/runs/1", json={"name": "x"})
        client.post("/api/runs/2/cancel")
    seen, cursor = [], None
    while True:
        page = client.get("/api/audit", params={"limit": 5, **({"cursor": cursor} if cursor else {})}).json()
        seen += [r["id"] for r in page["audit"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert len(seen) == len(set(seen)) == 13
    assert seen == sorted(seen, reverse=True)
    assert {r["path"] for r in newest(client, run_id=2)} == {"/api/runs/2/cancel"}


@pytest.mark.parametrize("query", ["cursor=0", "cursor=x", "limit=0", "limit=1001", "run_id=0", "since=1"])
def test_an_invalid_audit_query_is_refused(client: httpx.Client, query: str) -> None:
    error_of(client.get(f"/api/audit?{query}"), 422)


def test_the_audit_log_contains_no_secrets_and_no_control_characters(client: httpx.Client) -> None:
    secret = client.post("/api/tokens", json={"name": "ci", "scope": "read"}).json()["secret"]
    client.post(f"/api/runs/{secret}?token={secret}")
    client.post("/api/%00%1b[31m%0a\u202e/" + "x" * 1000)
    found = newest(client)
    assert found[1]["path"] == "/api/runs/..."
    assert found[0]["path"].startswith("/api/\\x00\\x1b[31m\\x0a\\x202e/xxx")
    assert len(found[0]["path"]) == 300


def test_the_access_page_escapes_markup_in_the_audit_log(client: httpx.Client) -> None:
    client.post("/api/<script>alert(1)</script>")
    client.post("/api/tokens", json={"name": "<img src=x>", "scope": "read"})
    page = client.get("/access").text
    assert "&lt;script&gt;" in page
    assert "<script>alert" not in page
    assert "<img" not in page


def test_unauthenticated_requests_cannot_flood_the_audit_log(app: FastAPI, client: httpx.Client) -> None:
    app.state.audit._strangers = RateLimit(audit.PER_MINUTE, clock=lambda: 0.0)  # all requests arrive at the same time
    client.post("/api/runs", json=BODY)
    for _ in range(100):
        client.post("/api/runs", json=BODY, headers={"Authorization": ""})
    answer = client.get("/api/audit", params={"limit": 1000}).json()
    assert len(answer["audit"]) == 1 + audit.PER_MINUTE * 10
    assert answer["skipped"] == 100 - audit.PER_MINUTE * 10
    assert answer["audit"][-1]["status"] == 201


WHO = Principal(3, "ci", "submit")


def note(log: Audit, count: int) -> None:
    from starlette.datastructures import MutableHeaders

    for number in range(count):
        log.note({"method": "POST", "path": f"/api/runs/{number + 1}/cancel"}, "127.0.0.1", WHO, 200, MutableHeaders())


def test_audit_rows_wait_for_the_database_in_order_and_dropped_rows_are_counted(
    sqlite: Database, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = Database("postgresql+psycopg://127.0.0.1:1/none")
    log = Audit(away, 90)
    monkeypatch.setattr(audit, "WAITING", 700)
    note(log, 702)
    assert (log.waiting, log.lost) == (700, 2)
    assert "cannot store this row of the audit log" in caplog.text
    assert "/api/runs/702/cancel" in caplog.text
    with pytest.raises(OperationalError):
        log.flush()
    assert log.waiting == 700
    log.database = sqlite
    log.flush()
    with sqlite.read() as session:
        assert session.scalars(select(AuditRow.run_id).order_by(AuditRow.id)).all() == list(range(1, 701))
    assert log.waiting == 0
    away.close()


def test_the_server_writes_waiting_audit_rows_before_it_stops(sqlite: Database, tmp_path: Path) -> None:
    with client_of(application(sqlite.url, tmp_path)) as client:
        client.post("/api/runs/7/cancel")
    with sqlite.read() as session:
        assert session.scalars(select(AuditRow.run_id)).all() == [7]


def test_old_audit_rows_are_deleted(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    common = {"token_id": None, "token_name": "", "address": "", "method": "POST", "path": "/", "status": 200, "run_id": None}
    with database.write() as session:
        session.execute(insert(AuditRow), [{"at": time.time() - days * 86_400, **common} for days in (100, 91, 89, 1, 0)])
    with database.write() as session:
        prune(session, 90)
    with database.read() as session:
        assert [r["id"] for r in audit_list_json(session)["audit"]] == [5, 4, 3]
    monkeypatch.setattr(audit, "MAX_ROWS", 2)
    with database.write() as session:
        prune(session, 90)
    with database.read() as session:
        assert [r["id"] for r in audit_list_json(session)["audit"]] == [5, 4]
