"""Destinations, tests and silences through the API, who may use them, and the page that manages them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.database.connection import Database
from server.database.models import AlertRow, Run
from server.webhooks import delivery, guarded_post
from tests.server.http_service import BODY, application, client_of, error_of
from tests.server.receiver import answer, receiving
from tests.server.recording import claimed
from tests.server.webhooks.test_mail import wait

pytestmark = [pytest.mark.both_engines, pytest.mark.slow]

HOUR = 3600.0


@pytest.fixture(autouse=True)
def _times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "POLL_SECONDS", 0.1)
    monkeypatch.setattr(guarded_post, "SECONDS", 100.0)


def key(client: httpx.Client, scope: str, user: str) -> dict[str, str]:
    made = client.post("/api/tokens", json={"name": user, "scope": scope}).json()
    return {"Authorization": f"Bearer {made['secret']}"}


@pytest.mark.parametrize("format", ["json", "slack", "discord", "teams", "ntfy"])
def test_a_test_message_arrives_and_the_receiver_s_answer_is_told(sqlite: Database, tmp_path: Path, format: str) -> None:
    with receiving() as receiver, client_of(application(sqlite.url, tmp_path, webhook_hosts=("127.0.0.1",))) as client:
        receiver.answers = [answer(200), answer(404)]
        body = {"url": f"http://127.0.0.1:{receiver.port}/SECRET", "events": ["run"], "format": format}
        assert client.post("/api/webhooks", json=body).json()["format"] == format
        assert client.post("/api/webhooks/1/test").json() == {"webhook_id": 1, "accepted": True, "answer": "it answered 200"}
        assert client.post("/api/webhooks/1/test").json() == {"webhook_id": 1, "accepted": False, "answer": "it answered 404"}
        headers, sent = receiver.calls[0]
        if format == "json":
            assert json.loads(sent)["events"] == [{"event": "test", "url": "http://127.0.0.1:8000/webhooks"}]
            assert headers["x-stablessm-signature"].startswith("sha256=")
        else:
            assert "This is a test" in sent.decode()
        (shown,) = client.get("/api/webhooks").json()["webhooks"]
        assert (shown["state"], shown["last_answer"]) == ("on", "test: it answered 404")
        assert shown["last_sent_at"] == pytest.approx(time.time(), abs=60)
    error_of(client_of(application(sqlite.url, tmp_path)).post("/api/webhooks/7/test"), 404)


def test_the_guard_covers_every_format(sqlite: Database, tmp_path: Path) -> None:
    with receiving() as receiver, client_of(application(sqlite.url, tmp_path, webhook_hosts=("127.0.0.1",))) as client:
        for format in ("json", "slack", "discord", "teams", "ntfy"):
            body = {"url": f"http://127.0.0.1:{receiver.port}/", "events": ["run"], "format": format}
            client.post("/api/webhooks", json=body)
        receiver.calls.clear()
        with client_of(application(sqlite.url, tmp_path)) as strict:  # the same database, but loopback is not allowed
            for number in range(1, 6):
                assert strict.post(f"/api/webhooks/{number}/test").json()["answer"] == "the address is not https"
            error = error_of(
                strict.post("/api/webhooks", json={"url": "https://127.0.0.1/", "events": ["run"], "format": "slack"}), 422
            )
            assert error["field"] == "url"
        assert receiver.calls == []


def test_two_servers_send_a_thousand_alerts_as_one_message_and_every_end_once(database: Database, tmp_path: Path) -> None:
    run_id = claimed(database, name="best").run_id
    more: dict[str, Any] = {"webhook_hosts": ("127.0.0.1",), "notify_critical_seconds": 1, "notify_seconds": 1}
    first, second = (client_of(application(database.url, tmp_path, **more)) for _ in range(2))
    with receiving() as receiver, first as one, second as two:
        body = {"url": f"http://127.0.0.1:{receiver.port}/", "events": ["alert", "run"], "format": "discord"}
        one.post("/api/webhooks", json=body)
        with database.write() as session:
            values = {"run_id": run_id, "seq": 1, "attempt": 1, "kind": "nonfinite_loss", "severity": "critical"}
            session.add_all(AlertRow(**values, step=step, message="NaN", created_at=time.time()) for step in range(1000))
        wait(lambda: len(receiver.calls) >= 1)
        other = one.post("/api/runs", json={**BODY, "name": "other"}).json()["id"]
        two.post(f"/api/runs/{other}/cancel")
        wait(lambda: len(receiver.calls) >= 2)
        time.sleep(0.5)
    titles = [json.loads(sent)["embeds"][0]["title"] for _, sent in receiver.calls]
    assert titles == ["Critical: nonfinite loss, 1,000 alerts: best", "Run was cancelled: other"]


@pytest.mark.parametrize(
    ("body", "field"),
    [({}, None), ({"run_id": 1}, "until"), ({"run_id": 1, "until": 1.0}, "until"), ({"run_id": 1, "until": 1e11}, "until"),
     ({"run_id": 0, "until": 2e9}, "run_id"), ({"project": "", "until": 2e9}, "project"),
     ({"kind": "; DROP", "until": 2e9}, "kind"), ({"until": 2e9}, None)],
)  # fmt: skip
def test_an_invalid_silence_is_refused(sqlite: Database, tmp_path: Path, body: dict[str, object], field: str | None) -> None:
    with client_of(application(sqlite.url, tmp_path)) as client:
        error = error_of(client.post("/api/silences", json=body), 422)
        assert field is None or error["field"] == field


def test_users_may_silence_their_own_runs_and_administrators_everything(sqlite: Database, tmp_path: Path) -> None:
    with client_of(application(sqlite.url, tmp_path)) as client:
        alice, bob, reader = key(client, "submit", "alice"), key(client, "submit", "bob"), key(client, "read", "wall")
        client.post("/api/runs", json=BODY, headers=alice)
        until = time.time() + HOUR
        mine = {"run_id": 1, "until": until}
        made = client.post("/api/silences", json=mine, headers=alice)
        assert made.status_code == 201
        assert made.json() | {"created_at": 0} == {
            "id": 1, "run_id": 1, "project": None, "kind": None, "until": until, "created_at": 0, "created_by": "alice",
        }  # fmt: skip
        assert error_of(client.post("/api/silences", json=mine, headers=bob), 403)["field"] == "run_id"
        assert error_of(client.post("/api/silences", json=mine, headers=reader), 403)["field"] == "scope"
        for body in ({"project": "hybrid", "until": until}, {"kind": "run.finished", "until": until}):
            assert error_of(client.post("/api/silences", json=body, headers=alice), 403)["allowed"] == "admin"
            assert client.post("/api/silences", json=body).status_code == 201
        assert [one["id"] for one in client.get("/api/silences", headers=reader).json()["silences"]] == [1, 2, 3]
        error_of(client.delete("/api/silences/1", headers=bob), 403)
        error_of(client.delete("/api/silences/2", headers=alice), 403)
        assert client.delete("/api/silences/1", headers=alice).status_code == 204
        error_of(client.delete("/api/silences/1"), 404)
        error_of(client.post("/api/silences", json={"run_id": 99, "until": until}), 404)


def test_an_administrator_ends_a_silence_of_a_run_in_the_trash(sqlite: Database, tmp_path: Path) -> None:
    with client_of(application(sqlite.url, tmp_path)) as client:
        run = client.post("/api/runs", json=BODY).json()["id"]
        client.post("/api/silences", json={"run_id": run, "until": time.time() + HOUR})
        client.post(f"/api/runs/{run}/cancel")
        assert client.delete(f"/api/runs/{run}").is_success
        assert client.delete("/api/silences/1").status_code == 204


def test_the_page_shows_destinations_and_silences_to_administrators_only(sqlite: Database, tmp_path: Path) -> None:
    with receiving() as receiver, client_of(application(sqlite.url, tmp_path, webhook_hosts=("127.0.0.1",))) as client:
        reader = key(client, "read", "wall")
        page = client.get("/webhooks", headers={"Accept": "text/html"})
        assert "Nobody is told yet" in page.text
        assert "set STABLESSM_SMTP_HOST" in page.text
        assert client.get("/webhooks", headers=reader).status_code == 403
        assert 'href="/webhooks"' in client.get("/alerts").text
        assert 'href="/webhooks"' not in client.get("/alerts", headers=reader).text
        body = {"url": f"http://127.0.0.1:{receiver.port}/SECRET", "events": ["alert"], "format": "ntfy"}
        client.post("/api/webhooks", json=body)
        client.post("/api/webhooks/1/test")
        run = client.post("/api/runs", json={**BODY, "name": "best", "project": "hybrid"}).json()["id"]
        client.post("/api/silences", json={"run_id": run, "until": time.time() + HOUR})
        page = client.get("/webhooks").text
        assert f"http://127.0.0.1:{receiver.port}/..." in page
        assert "SECRET" not in page
        assert "test: it answered 204" in page
        assert 'href="/runs/1">best</a>' in page
        assert "Messages are silenced" in client.get(f"/runs/{run}").text


def test_removing_a_destination_drops_what_waits_for_it(sqlite: Database, tmp_path: Path) -> None:
    with receiving() as receiver, client_of(application(sqlite.url, tmp_path, webhook_hosts=("127.0.0.1",))) as client:
        client.post("/api/webhooks", json={"url": f"http://127.0.0.1:{receiver.port}/", "events": ["run"], "format": "slack"})
        run = client.post("/api/runs", json=BODY).json()["id"]
        client.post(f"/api/runs/{run}/cancel")
        messages = lambda: client.get(f"/api/runs/{run}/history").json()["notifications"]  # noqa: E731
        wait(lambda: len(messages()) == 1)
        assert messages()[0]["state"] == "waiting"
        client.delete("/api/webhooks/1")
        assert (messages()[0]["state"], messages()[0]["answer"]) == ("failed", "the webhook was removed")
        body = {"url": f"http://127.0.0.1:{receiver.port}/new", "events": ["run"], "format": "slack"}
        other = client.post("/api/webhooks", json=body).json()["id"]
        client.post(f"/api/webhooks/{other}/enable")
        time.sleep(0.5)
        assert messages()[0]["state"] == "failed", "a message to a removed address must not go to a new address"
        assert receiver.calls == []


def test_deleting_a_run_deletes_its_messages_and_silences(database: Database, tmp_path: Path) -> None:
    with client_of(application(database.url, tmp_path, trash_hours=0)) as client:
        run = client.post("/api/runs", json=BODY).json()["id"]
        client.post("/api/silences", json={"run_id": run, "until": time.time() + HOUR})
        client.post(f"/api/runs/{run}/cancel")
        client.delete(f"/api/runs/{run}")
        with database.read() as session:
            assert session.get(Run, run) is None
        assert client.get("/api/silences").json() == {"silences": []}
