"""Behind a reverse proxy: the client address that counts, Secure cookies, and the proxies that may name users by header."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.datastructures import Headers

from server.access.proxies import Proxies
from server.http.app import create_app
from tests.server.http_service import BODY, TOKEN, application, client_of, error_of, settings

pytestmark = pytest.mark.slow

PROXY = "127.0.0.1"  # the address from which the tests' requests come
HEADER = "X-Forwarded-User"


def app_behind(url: str, folder: Path, **more: Any) -> FastAPI:
    return application(url, folder, **{"trusted_proxies": (PROXY,), "user_header": HEADER} | more)


@pytest.fixture
def client(sqlite_url: str, tmp_path: Path) -> Iterator[httpx.Client]:
    with client_of(app_behind(sqlite_url, tmp_path)) as client:
        yield client


def proxy_key(client: httpx.Client, scope: str = "submit") -> dict[str, str]:
    made = client.post("/api/tokens", json={"name": "sso", "scope": scope, "names_users": True}).raise_for_status()
    return {"Authorization": f"Bearer {made.json()['secret']}", "Origin": "http://127.0.0.1:8000"}


@pytest.mark.parametrize(
    ("peer", "forwarded", "client_is"),
    [
        ("10.0.0.7", ["192.0.2.1"], "192.0.2.1"),
        ("10.0.0.7", ["6.6.6.6, 192.0.2.1"], "192.0.2.1"),  # the value sent by the client itself comes first
        ("10.0.0.7", ["6.6.6.6", "192.0.2.1, 10.0.0.8"], "192.0.2.1"),  # the request passed through two proxies
        ("10.0.0.7", [], "10.0.0.7"),
        ("10.0.0.7", ["unknown"], "10.0.0.7"),
        ("10.0.0.7", ["192.0.2.1:4711"], "192.0.2.1"),
        ("10.0.0.7", ["[2001:db8::1]:4711"], "2001:db8::1"),
        ("10.0.0.7", ["2001:db8::1"], "2001:db8::1"),
    ],
)
def test_the_client_is_the_last_forwarded_address_that_is_not_a_trusted_proxy(
    peer: str, forwarded: list[str], client_is: str
) -> None:
    proxies = Proxies(("10.0.0.0/24",))
    headers = Headers(raw=[(b"x-forwarded-for", value.encode()) for value in forwarded])
    assert proxies.trusts(peer)
    assert proxies.trusts(f"::ffff:{peer}")
    assert proxies.client(peer, headers) == client_is


@pytest.mark.parametrize("address", ["192.0.2.1", "", "10.0.1.7", "not an address", "::1"])
def test_other_addresses_are_not_trusted(address: str) -> None:
    assert not Proxies(("10.0.0.0/24",)).trusts(address)
    assert not Proxies(()).trusts(address)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"trusted_proxies": ("proxy.example.org",)}, "STABLESSM_TRUSTED_PROXIES"),
        ({"user_header": HEADER}, "STABLESSM_USER_HEADER"),
    ],
)
def test_invalid_proxy_settings_are_refused_at_start(sqlite_url: str, tmp_path: Path, given: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        create_app(settings(sqlite_url, tmp_path, **given))


@pytest.mark.parametrize(("trusted", "locked_out"), [((PROXY,), False), ((), True)])
def test_wrong_tokens_behind_a_trusted_proxy_lock_out_only_their_sender(
    sqlite_url: str, tmp_path: Path, trusted: tuple[str, ...], *, locked_out: bool
) -> None:
    with client_of(application(sqlite_url, tmp_path, trusted_proxies=trusted)) as client:
        wrong = {"Authorization": "Bearer " + "x" * 40, "X-Forwarded-For": "192.0.2.66"}
        assert [client.get("/api/runs", headers=wrong).status_code for _ in range(11)] == [401] * 10 + [429]
        fresh = client.post("/api/tokens", json={"name": "n", "scope": "read"}, headers={"X-Forwarded-For": "192.0.2.1"})
        key = {
            "Authorization": f"Bearer {fresh.json()['secret']}" if fresh.status_code == 201 else "",
            "X-Forwarded-For": "192.0.2.1",
        }
        assert (client.get("/api/runs", headers=key).status_code == 200) is not locked_out


def test_the_audit_log_and_the_request_log_contain_address_token_and_user(
    sqlite_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "stablessm.request")
    with client_of(app_behind(sqlite_url, tmp_path)) as client:
        made = client.post("/api/tokens", json={"name": "laptop", "scope": "submit", "user": "alice"}).json()
        key = {"Authorization": f"Bearer {made['secret']}", "X-Forwarded-For": "192.0.2.9"}
        run = client.post("/api/runs", json=BODY, headers=key).json()["id"]
        client.post("/api/runs", json=BODY, headers={"Authorization": "Bearer no", "X-Forwarded-For": "192.0.2.8"})
        rows = client.get("/api/audit").json()["audit"]
    assert [(row["address"], row["token_name"], row["user_name"]) for row in rows[:2]] == [
        ("192.0.2.8", "", ""),
        ("192.0.2.9", "laptop", "alice"),
    ]
    lines = [vars(record) for record in caplog.records if record.name == "stablessm.request"]
    owner, alice, stranger = (
        {name: line.get(name) for name in ("token", "token_id", "user", "address", "run")} for line in lines
    )
    assert owner == {"token": "settings", "token_id": None, "user": None, "address": PROXY, "run": None}
    assert alice == {"token": "laptop", "token_id": made["id"], "user": "alice", "address": "192.0.2.9", "run": run}
    assert stranger == {"token": None, "token_id": None, "user": None, "address": "192.0.2.8", "run": None}
    assert made["secret"] not in caplog.text


@pytest.mark.parametrize(
    ("trusted", "proto", "secure"),
    [
        ((PROXY,), "https", True),
        ((PROXY,), "http", False),
        ((PROXY,), None, False),
        ((PROXY,), "http, https", True),
        ((), "https", False),
    ],
)
def test_the_session_cookie_is_secure_behind_a_trusted_tls_proxy(
    sqlite_url: str, tmp_path: Path, trusted: tuple[str, ...], proto: str | None, *, secure: bool
) -> None:
    with client_of(application(sqlite_url, tmp_path, trusted_proxies=trusted), token=None) as client:
        headers = {"X-Forwarded-Proto": proto} if proto else {}
        answers = [
            client.get(f"/?token={TOKEN}", headers=headers),
            client.post(
                "/login", content=f"token={TOKEN}", headers=headers | {"Content-Type": "application/x-www-form-urlencoded"}
            ),
        ]
    for answer in answers:
        assert answer.status_code == 303
        assert ("; secure" in answer.headers["Set-Cookie"].lower()) is secure


def test_a_user_named_by_a_proxy_owns_runs_and_can_change_their_name(client: httpx.Client) -> None:
    sso = proxy_key(client)
    alice, bob = sso | {HEADER: "alice@example.org"}, sso | {HEADER: "bob@example.org"}
    run = client.post("/api/runs", json=BODY, headers=alice).raise_for_status().json()
    assert (run["user"], client.get("/api/me", headers=bob).json()["user"]["name"]) == ("alice@example.org", "bob@example.org")
    assert client.patch("/api/me", json={"name": "Alice"}, headers=alice).json()["user"]["name"] == "Alice"
    assert client.get("/api/me", headers=alice).json()["user"]["id"] == run["user_id"]
    assert client.get(f"/api/runs/{run['id']}").json()["user"] == "Alice"
    assert error_of(client.patch(f"/api/runs/{run['id']}", json={"name": "b"}, headers=bob), 403)["field"] == "run_id"
    assert client.patch(f"/api/runs/{run['id']}", json={"name": "a"}, headers=alice).status_code == 200
    rows = client.get("/api/audit").json()["audit"]
    assert {row["user_name"] for row in rows if row["token_name"] == "sso"} == {"alice@example.org", "bob@example.org", "Alice"}


def test_a_user_named_by_a_proxy_never_becomes_an_existing_user_of_the_same_name(client: httpx.Client) -> None:
    client.post("/api/tokens", json={"name": "alice", "scope": "submit"}).raise_for_status()
    named = client.get("/api/me", headers=proxy_key(client) | {HEADER: "alice"}).json()["user"]
    assert (named["name"], named["identity"]) == ("alice 2", "alice")


def test_an_administrator_can_assign_a_proxy_identity_to_a_user(client: httpx.Client) -> None:
    user = client.post("/api/users", json={"name": "carol", "identity": "c@example.org"}).json()
    assert client.get("/api/me", headers=proxy_key(client) | {HEADER: "c@example.org"}).json()["user"]["id"] == user["id"]


@pytest.mark.parametrize("name", [None, "", "a\tb", "x" * 201])
def test_a_proxy_token_without_a_valid_user_header_is_refused(client: httpx.Client, name: str | None) -> None:
    headers = proxy_key(client) | ({HEADER: name} if name is not None else {})
    assert error_of(client.get("/api/runs", headers=headers), 401)


def test_a_proxy_token_with_two_user_headers_is_refused(client: httpx.Client) -> None:
    given = [*proxy_key(client).items(), (HEADER, "alice"), (HEADER, "bob")]
    assert error_of(client.get("/api/runs", headers=given), 401)


@pytest.mark.parametrize(
    "more", [{"trusted_proxies": ("10.0.0.7",)}, {"trusted_proxies": (), "user_header": None}, {"user_header": None}]
)
def test_a_proxy_token_is_refused_unless_its_proxy_and_header_are_configured(sqlite_url: str, tmp_path: Path, more: Any) -> None:
    with client_of(app_behind(sqlite_url, tmp_path, **more)) as client:
        headers = proxy_key(client) | {HEADER: "alice", "X-Forwarded-For": "10.0.0.7"}
        assert error_of(client.get("/api/runs", headers=headers), 401)


def test_the_user_header_has_no_effect_with_another_token_or_without_a_token(client: httpx.Client) -> None:
    made = client.post("/api/tokens", json={"name": "bob", "scope": "submit"}).json()
    headers = {"Authorization": f"Bearer {made['secret']}", HEADER: "alice"}
    assert client.get("/api/me", headers=headers).json()["user"]["name"] == "bob"
    # This request has the owner's token, so the header is ignored.
    assert client.get("/api/me", headers={HEADER: "alice"}).json()["user"]["id"] == 0
    assert error_of(client.get("/api/me", headers={HEADER: "alice", "Authorization": ""}), 401)


def test_a_user_named_by_a_proxy_has_the_scope_of_the_proxy_token_and_needs_our_origin_to_write(client: httpx.Client) -> None:
    reader = proxy_key(client, "read") | {HEADER: "alice"}
    assert error_of(client.post("/api/runs", json=BODY, headers=reader), 403)["field"] == "scope"
    writer = {name: value for name, value in proxy_key(client).items() if name != "Origin"} | {HEADER: "alice"}
    assert error_of(client.post("/api/runs", json=BODY, headers=writer), 403)["field"] == "Origin"
