"""Webhooks deliver every event at least once, from one process, and never call a forbidden address."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from server.database.connection import Database
from server.database.models import AlertRow, Run, Webhook
from server.lifecycle import transitions as lifecycle
from server.series.alerts import insert_alerts
from server.webhooks import delivery, guarded_post, registry
from server.webhooks.guarded_post import Failed, Refused, check_form, is_global, post, resolve
from stablessm_core.spec.config import RunConfig
from stablessm_core.telemetry.detectors.raised_elsewhere import WORKER_LOST
from tests.server.http_service import BODY, TOKEN, application, client_of, error_of
from tests.server.receiver import Receiver, answer, certificate, receiving
from tests.server.recording import claimed, nonfinite

pytestmark = [pytest.mark.both_engines, pytest.mark.slow]

NONE: frozenset[str] = frozenset()

# every known notation of an address that leads to a private or disguised target
HOSTILE = [
    "http://example.org/", "https://example.org:22/", "https://example.org:6379/", "https://example.org:80/", "ftp://example.org/",
    "file:///etc/passwd", "gopher://127.0.0.1:6379/_FLUSHALL", "//example.org/", "https:///", "https://", "example.org", "",
    "https://user@example.org/", "https://user:secret@example.org/", "https://example.org@127.0.0.1/", "https://127.0.0.1/",
    "https://localhost/", "https://localhost.:443/", "https://127.1/", "https://127.0.1/", "https://2130706433/", "https://0x7f000001/",
    "https://0x7f.0.0.1/", "https://0177.0.0.1/", "https://017700000001/", "https://0/", "https://0.0.0.0/", "https://10.0.0.1/",
    "https://172.16.0.1/", "https://192.168.1.1/", "https://169.254.169.254/latest/meta-data/", "https://100.64.0.1/", "https://192.0.2.1/",
    "https://198.18.0.1/", "https://224.0.0.1/", "https://240.0.0.1/", "https://255.255.255.255/", "https://[::1]/", "https://[::]/",
    "https://[::ffff:127.0.0.1]/", "https://[::ffff:8.8.8.8]/", "https://[::ffff:7f00:1]/", "https://[::127.0.0.1]/",
    "https://[64:ff9b::7f00:1]/", "https://[64:ff9b:1::a00:1]/", "https://[2002:7f00:1::]/", "https://[2001:0:7f00:1::]/",
    "https://[2001:db8::1]/", "https://[fe80::1]/", "https://[fe80::1%25lo]/", "https://[fc00::1]/", "https://[fd00:ec2::254]/",
    "https://[ff02::1]/", "https://[5f00::1]/", "https://[3fff::1]/", "https://１２７.0.0.1/", "https://127。0。0。1/",
    "https://example.org\\@127.0.0.1/", "https://example.org\r\nHost: x/", "https://exa mple.org/", "https://example.org:99999/",
    "https://example.org:0/", "https://example.org:443:443/", "https://[::1/", "https://-example.org/", "https://exa_mple.org/",
]  # fmt: skip


@pytest.mark.parametrize("url", HOSTILE)
def test_a_url_of_a_private_address_is_refused(url: str) -> None:
    with pytest.raises((Refused, Failed)):
        resolve(check_form(url, NONE))


def test_the_list_of_hostile_urls_has_more_than_sixty_entries() -> None:
    assert len(set(HOSTILE)) > 60


@pytest.mark.parametrize("url", ["https://8.8.8.8/hook?x=1", "https://8.8.8.8:8443/", "https://[2606:4700:4700::1111]/"])
def test_a_public_address_is_allowed(url: str) -> None:
    assert resolve(check_form(url, NONE))[1] in guarded_post.PORTS


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111"])
def test_public_addresses_are_global(address: str) -> None:
    assert is_global(address)


def test_only_the_exact_hosts_that_the_installation_allows_are_allowed() -> None:
    allowed = frozenset({"127.0.0.1:9000", "inside.example"})
    assert check_form("http://127.0.0.1:9000/", allowed).trusted
    assert check_form("http://inside.example:81/x", allowed).trusted
    for url in ("http://127.0.0.1:9001/", "https://127.0.0.1/", "http://x.inside.example/", "http://inside.example.evil.org/",
                "http://inside.example@evil.org/"):  # fmt: skip
        with pytest.raises(Refused):
            resolve(check_form(url, allowed))


def test_a_host_with_one_private_address_among_several_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def two(host: str, port: int, *_: object, **__: object) -> list[tuple[Any, ...]]:
        return [(2, 1, 6, "", ("8.8.8.8", port)), (2, 1, 6, "", ("10.0.0.1", port))]

    monkeypatch.setattr("socket.getaddrinfo", two)
    with pytest.raises(Refused, match="not a public address"):
        resolve(check_form("https://two-faces.example/", NONE))


def test_the_checked_address_is_called_without_a_second_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def rebinding(host: str, port: int, *_: object, **__: object) -> list[tuple[Any, ...]]:
        asked.append(host)
        return [(2, 1, 6, "", ("127.0.0.1", receiver.port))]

    with receiving() as receiver:
        monkeypatch.setattr("socket.getaddrinfo", rebinding)
        # create_connection resolves a host name, but leaves a numeric address unchanged.
        assert post(f"http://inside.example:{receiver.port}/x?y=1", b"{}", {}, frozenset({"inside.example"})) == 204
    assert asked[0] == "inside.example"
    assert set(asked[1:]) <= {"127.0.0.1"}
    assert receiver.calls[0][0]["host"] == f"inside.example:{receiver.port}"
    assert receiver.calls[0][0][""] == "POST /x?y=1 HTTP/1.1"


def allow(receiver: Receiver) -> frozenset[str]:
    return frozenset({f"127.0.0.1:{receiver.port}"})


def test_a_redirect_is_not_followed() -> None:
    with receiving() as other, receiving() as receiver:
        receiver.answers = [answer(302, b"", f"Location: http://127.0.0.1:{other.port}/")]
        both = allow(receiver) | allow(other)
        assert post(f"http://127.0.0.1:{receiver.port}/", b"{}", {}, both) == 302
        assert other.calls == []


@pytest.mark.parametrize(
    ("said", "reason"),
    [(answer(200, b"x" * 70_000), "longer than 65,536 bytes"), (b"nonsense\r\n\r\n", "failed"), (b"", "failed")],
)  # fmt: skip
def test_a_malformed_response_counts_as_a_failure(said: bytes, reason: str) -> None:
    with receiving() as receiver:
        receiver.answers = [said]
        with pytest.raises(Failed, match=reason):
            post(f"http://127.0.0.1:{receiver.port}/", b"{}", {}, allow(receiver))


def test_a_slow_response_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded_post, "SECONDS", 1.0)
    with receiving() as receiver:
        receiver.drip = True
        with pytest.raises(Failed, match="no answer within 1 s"):
            post(f"http://127.0.0.1:{receiver.port}/", b"{}", {}, allow(receiver))


def test_the_tls_certificate_must_match_the_host_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, context = certificate(tmp_path, "localhost")
    with receiving(context) as receiver:
        allowed = frozenset({"localhost", "127.0.0.1"})
        with pytest.raises(Failed, match="certificate"):
            post(f"https://localhost:{receiver.port}/", b"{}", {}, allowed)
        monkeypatch.setenv("SSL_CERT_FILE", str(file))
        assert post(f"https://localhost:{receiver.port}/", b"{}", {}, allowed) == 204
        with pytest.raises(Failed, match="certificate"):
            post(f"https://127.0.0.1:{receiver.port}/", b"{}", {}, allowed)


# Tests over the API


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


def wait(what: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        threading.Event().wait(0.05)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "POLL_SECONDS", 0.1)
    monkeypatch.setattr(delivery, "CLOSE_SECONDS", 100.0)
    monkeypatch.setattr(guarded_post, "SECONDS", 100.0)  # a call that is late on a busy machine must not count as failed


def test_webhooks_receive_signed_alerts_and_ends_of_runs(database: Database, tmp_path: Path, receiver: Receiver) -> None:
    app = application(database.url, tmp_path, webhook_hosts=(f"127.0.0.1:{receiver.port}",))
    with client_of(app) as client:
        body = {"url": f"http://127.0.0.1:{receiver.port}/hook/SECRET", "events": ["alert.critical", "run.diverged"]}
        made = client.post("/api/webhooks", json=body).json()
        assert made["url"] == f"http://127.0.0.1:{receiver.port}/..."
        assert "SECRET" not in client.get("/api/webhooks").text + client.get("/access").text
        run_id = claimed(database).run_id
        alert, warning = nonfinite("nonfinite_loss"), WORKER_LOST.alert(step=6, message="gone")
        with database.write() as session:
            run = session.get_one(Run, run_id)
            insert_alerts(session, run.id, run.attempt, [alert, warning], run.seq + 1)
            lifecycle.finish(session, run.id, run.attempt, "diverged", "NaN", {"train_loss": float("nan")})
        wait(lambda: len(receiver.events()) >= 2)
        assert [event["event"] for event in receiver.events()] == ["alert", "run"]
        told = receiver.events()
        assert told[0]["alert"]["kind"] == alert.kind
        assert told[1]["run"] | {"finished_at": 0} == {
            "id": run.id, "name": None, "status": "diverged", "status_reason": "NaN", "step": 0, "attempt": 1,
            "result": {"train_loss": "NaN"}, "divergence": None, "finished_at": 0,
        }  # fmt: skip
        assert told[0]["url"] == f"http://127.0.0.1:8000/runs/{run.id}"
        headers, sent = receiver.calls[0]
        mark = hmac.new(made["signing_key"].encode(), sent, hashlib.sha256).hexdigest()
        assert headers["x-stablessm-signature"] == f"sha256={mark}"
        assert TOKEN not in json.dumps(headers) + sent.decode()
        wait(lambda: client.get("/api/webhooks").json()["webhooks"][0]["state"] == "on")
        assert client.delete(f"/api/webhooks/{made['id']}").status_code == 204
        error_of(client.delete(f"/api/webhooks/{made['id']}"), 404)


def test_a_failing_webhook_is_retried_then_disabled_and_receives_every_event_later(
    sqlite: Database, tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "MAX_PAUSE_SECONDS", 0.01)
    receiver.answers = [answer(404), answer(302), answer(500)]  # only 2xx counts as received
    app = application(sqlite.url, tmp_path, webhook_hosts=(f"127.0.0.1:{receiver.port}",))
    with client_of(app) as client:
        client.post("/api/webhooks", json={"url": f"http://127.0.0.1:{receiver.port}/", "events": ["run"]})
        for _ in range(3):
            run = client.post("/api/runs", json=BODY).json()["id"]
            client.post(f"/api/runs/{run}/cancel")

        def shown() -> dict[str, Any]:
            return dict(client.get("/api/webhooks").json()["webhooks"][0])

        wait(lambda: shown()["state"] == "off")
        assert shown()["failures"] == registry.MAX_FAILURES
        assert shown()["last_error"] == "it answered 500"
        calls = len(receiver.calls)
        assert calls == registry.MAX_FAILURES
        receiver.calls.clear()
        receiver.answers = [answer(200)]
        assert client.post("/api/webhooks/1/enable").json()["state"] == "on"
        wait(lambda: len(receiver.events()) >= 3)
        assert [event["run"]["id"] for event in receiver.events()] == [1, 2, 3]
        assert "waiting" not in [one["state"] for one in client.get("/api/runs/1/history").json()["notifications"]]
        error_of(client.post("/api/webhooks/7/enable"), 404)


def test_only_one_of_two_servers_delivers_and_the_other_takes_over(
    database: Database, tmp_path: Path, receiver: Receiver
) -> None:
    more = {"webhook_hosts": (f"127.0.0.1:{receiver.port}",)}
    with client_of(application(database.url, tmp_path, **more)) as second:
        with client_of(application(database.url, tmp_path, **more)) as first:
            first.post("/api/webhooks", json={"url": f"http://127.0.0.1:{receiver.port}/", "events": ["run"]})
            for _ in range(5):
                run = first.post("/api/runs", json=BODY).json()["id"]
                second.post(f"/api/runs/{run}/cancel")
            wait(lambda: len(receiver.events()) >= 5)
        run = second.post("/api/runs", json=BODY).json()["id"]
        second.post(f"/api/runs/{run}/cancel")
        wait(lambda: len(receiver.events()) >= 6)
    assert [event["run"]["id"] for event in receiver.events()] == [1, 2, 3, 4, 5, 6]


def test_an_alert_that_is_committed_late_is_also_delivered(database: Database) -> None:
    run = claimed(database)
    with database.write() as session:
        hook = registry.new_webhook(session, "https://hooks.example.org/", ["alert"])
    seen: list[int] = []

    def look() -> None:
        with database.write() as session:
            webhook = session.get_one(Webhook, hook.id)
            news = registry.due(session, webhook, "")
            seen.extend(event["alert"]["id"] for event in news.events)
            registry.move_cursor(session, hook.id, json.loads(json.dumps(news.cursor)))

    def alert(number: int) -> None:
        what = {"kind": "worker_lost", "severity": "warning", "step": number, "message": "x", "created_at": 0.0}
        with database.write() as session:
            session.add(AlertRow(id=number, run_id=run.run_id, seq=5, attempt=run.attempt, **what))

    alert(5)  # ids 1 to 4 belong to transactions that are not committed yet
    look()
    alert(3)
    look()
    look()
    alert(6)
    look()
    assert seen == [5, 3, 6]


def test_events_that_do_not_fit_into_one_call_are_all_delivered(sqlite: Database) -> None:
    with sqlite.write() as session:
        hook = registry.new_webhook(session, "https://hooks.example.org/", ["run"])
        for _ in range(registry.EVENTS_PER_CALL * 2 + 7):
            run = lifecycle.submit(session, RunConfig.model_validate(BODY))
            lifecycle.request_cancel(session, run.id)
    seen: list[int] = []
    for expected in (registry.EVENTS_PER_CALL, registry.EVENTS_PER_CALL, 7, 0):
        with sqlite.write() as session:
            news = registry.due(session, session.get_one(Webhook, hook.id), "")
            assert len(news.events) == expected
            seen += [event["run"]["id"] for event in news.events]
            registry.move_cursor(session, hook.id, news.cursor)
    assert seen == sorted(set(seen))


@pytest.mark.parametrize(
    ("body", "field"),
    [({"url": "https://10.0.0.1/"}, "url"), ({"url": "http://example.org/"}, "url"), ({"url": "x" * 501}, "url"),
     ({"events": []}, "events"), ({"events": ["everything"]}, "events.0"), ({"events": ["alert.critical; DROP"]}, "events.0"),
     ({"events": ["run"] * 21}, "events")],
)  # fmt: skip
def test_an_invalid_webhook_is_refused(sqlite: Database, tmp_path: Path, body: dict[str, object], field: str) -> None:
    with client_of(application(sqlite.url, tmp_path)) as client:
        error = error_of(client.post("/api/webhooks", json={"url": "https://8.8.8.8/", "events": ["run"], **body}), 422)
        assert error["field"] == field


def test_the_number_of_webhooks_is_limited(sqlite: Database, tmp_path: Path) -> None:
    with client_of(application(sqlite.url, tmp_path)) as client:
        body = {"url": "https://8.8.8.8/", "events": ["run.failed"]}
        statuses = [client.post("/api/webhooks", json=body).status_code for _ in range(registry.MAX_WEBHOOKS + 1)]
        assert statuses == [201] * registry.MAX_WEBHOOKS + [409]


def test_pauses_between_retries_double_up_to_ten_minutes() -> None:
    assert [registry.pause(n) for n in (0, 1, 2, 3, 9, 10, 50)] == [0, 2, 4, 8, 512, 600, 600]
