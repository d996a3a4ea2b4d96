"""No log, database or page contains a secret: the test signs in to a real server in every way and then searches for them."""

from __future__ import annotations

import logging
from pathlib import Path

import httpx
import pytest

from server.http.credentials import COOKIE
from tests.installation import Installation
from tests.server.http_service import application, client_of, error_of

pytestmark = pytest.mark.slow

PAGES = ("/", "/new", "/alerts", "/access", "/docs", "/theory", "/paper", "/compare", "/api/tokens", "/api/audit",
         "/api/webhooks", "/api/runs", "/metrics", "/openapi.json", "/login", "/nothing", "/api/workers")  # fmt: skip


def test_no_way_of_signing_in_leaks_a_secret(sqlite_url: str, data_dir: Path, free_port: int) -> None:
    server = Installation(
        data_dir, free_port, environment={"STABLESSM_DATABASE_URL": sqlite_url, "STABLESSM_DATA_DIR": str(data_dir)}
    )
    try:
        server.start("serve", "--port", str(free_port))
        server.wait_until_it_answers()
        owner = (data_dir / "token").read_text().strip()
        wrong = "a-wrong-token-that-somebody-typed-0123456789"
        with httpx.Client(base_url=server.url, timeout=60) as client:
            bearer = {"Authorization": f"Bearer {owner}"}
            made = client.post("/api/tokens", json={"name": "ci", "scope": "admin"}, headers=bearer).json()["secret"]
            hook = {"url": "https://8.8.8.8/hooks/THE-SECRET-PATH", "events": ["run.failed"]}
            key = client.post("/api/webhooks", json=hook, headers=bearer).json()["signing_key"]
            cookies = []
            for secret in (owner, made, wrong):
                for path in (f"/?token={secret}", f"/runs/77?token={secret}", f"/api/runs?token={secret}&q=%00"):
                    cookies.append(client.get(path).cookies.get(COOKIE))
                    client.get(path, headers={"Host": "evil.example"})
                    client.post(path, headers={"Authorization": f"Bearer {secret}"}, json={"token": secret})
                    client.cookies.clear()
                cookies.append(client.post("/login", data={"token": secret, "next": f"/?token={secret}"}).cookies.get(COOKIE))
                client.cookies.clear()
                client.post(f"/api/runs/{secret}/cancel", headers=bearer)
                client.get("/api/runs", headers={"Cookie": f"{COOKIE}={secret}"})
            sessions = [cookie for cookie in cookies if cookie]
            assert len(sessions) >= 4
            for cookie in sessions:
                assert client.get("/api/runs", headers={"Cookie": f"{COOKIE}={cookie}"}).status_code == 200
            texts = {page: client.get(page, headers=bearer | {"Accept": "text/html"}).text for page in PAGES}
        server.stop(server.processes[0])
        texts["log"] = server.output()
        texts["database"] = b"".join(p.read_bytes() for p in Path(sqlite_url[10:]).parent.glob("*.db*")).decode("latin1")
        inside = {"owner": owner, "made": made, "key": key, **{f"session {n}": cookie for n, cookie in enumerate(sessions)}}
        assert [(name, place) for name, secret in inside.items() for place, text in texts.items() if secret in text] == []
        assert all("THE-SECRET-PATH" not in text for place, text in texts.items() if place != "database")
        assert wrong not in texts["log"]
    finally:
        server.kill_all()


def test_the_password_of_an_unreachable_database_is_not_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.DEBUG),
        client_of(application("postgresql+psycopg://user:PASSWORD@127.0.0.1:1/x", tmp_path)) as client,
    ):
        error = error_of(client.get("/api/runs"), 503)
        error_of(client.post("/api/runs", json={"task": {"name": "polynomial_memory"}}), 503)
    assert "PASSWORD" not in caplog.text + str(error)
    assert "127.0.0.1" not in str(error)
