"""User names cannot pass for one another: no invisible characters, one script in each word, no two names that look alike."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from server.access.names import BadName, check_name, looks
from tests.server.http_service import application, client_of, error_of

PROXY, HEADER = "127.0.0.1", "X-Forwarded-User"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("al\u200bice", "U+200B"),  # zero-width space
        ("al\u00adice", "U+00AD"),  # soft hyphen
        ("al\u2060ice", "U+2060"),  # word joiner
        ("al\ufe0fice", "U+FE0F"),  # variation selector
        ("al\u034fice", "U+034F"),
        ("al\u202eice", "U+202E"),  # right-to-left override
        ("\u3164", "U+3164"),  # Hangul filler
        ("\u0430lice", "scripts Cyrillic and Latin"),
        ("b\u03bfb", "scripts Greek and Latin"),
        (" \u2003 ", "0 characters"),
    ],
)
def test_a_name_with_invisible_characters_or_mixed_scripts_is_refused(name: str, says: str) -> None:
    with pytest.raises(BadName) as refused:
        check_name(name)
    assert says in str(refused.value)


@pytest.mark.parametrize("name", ["alice", "Zoë", "Işık", "Иван Петров", "анна@example.org", "田中さん", "김 Lee", "O'Neil-2"])
def test_ordinary_names_of_any_language_are_accepted(name: str) -> None:
    assert check_name(name) == name


def test_a_name_is_stored_in_its_compatible_form() -> None:
    assert check_name(" \uff21lice  B\u006f\u0308hm ") == "Alice Böhm"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("alice", "al\u0131ce"),
        ("Coco", "\u0441\u043e\u0441\u043e"),
        ("paypal", "paypaI"),
        ("modern", "modem"),
        ("\uff21da", "ADA"),
    ],
)
def test_names_that_are_easily_confused_look_alike(one: str, other: str) -> None:
    assert looks(one) & looks(other)


@pytest.mark.parametrize(("one", "other"), [("alice", "alicia"), ("zoe", "zoë"), ("user 1", "user 2"), ("ci", "ci 2")])
def test_other_names_do_not(one: str, other: str) -> None:
    assert not looks(one) & looks(other)


@pytest.fixture
def client(sqlite_url: str, tmp_path: Path) -> Iterator[httpx.Client]:
    app = application(sqlite_url, tmp_path, trusted_proxies=(PROXY,), user_header=HEADER, proxy_users=3)
    with client_of(app) as client:
        client.post("/api/users", json={"name": "alice"}).raise_for_status()
        yield client


def sso(client: httpx.Client, identity: str) -> httpx.Response:
    """The answer to a request by a proxy that names the user with this identity."""
    made = client.post("/api/tokens", json={"name": "sso", "scope": "submit", "names_users": True}).raise_for_status()
    bearer = f"Bearer {made.json()['secret']}".encode()
    return client.get("/api/me", headers=[(b"Authorization", bearer), (HEADER.encode(), identity.encode("latin1"))])


@pytest.mark.slow
def test_the_api_refuses_names_that_pass_for_another_user(client: httpx.Client) -> None:
    for name in ("al\u200bice", "al\u00adice", "\u0430lice"):
        assert error_of(client.post("/api/users", json={"name": name}), 422)["field"] == "name"
        assert error_of(client.patch("/api/me", json={"name": name}), 422)["field"] == "name"
        wanted = {"name": "laptop", "scope": "read", "user": name}
        assert error_of(client.post("/api/tokens", json=wanted), 422)["field"] == "user"
    refused = error_of(client.post("/api/users", json={"name": "Al\u0131ce"}), 409)
    assert (refused["field"], "already a user 'alice', which looks like" in refused["message"]) == ("name", True)
    assert error_of(client.patch("/api/me", json={"name": "al\u0131ce"}), 409)["field"] == "name"
    wanted = {"name": "laptop", "scope": "read", "user": "al\u0131ce"}
    assert error_of(client.post("/api/tokens", json=wanted), 409)["field"] == "user"
    assert [user["name"] for user in client.get("/api/users").json()["users"]] == ["owner", "alice"]


@pytest.mark.slow
def test_a_proxy_can_create_only_as_many_users_as_the_settings_allow(client: httpx.Client) -> None:
    assert [sso(client, f"user-{number}").status_code for number in range(3)] == [200] * 3
    refused = error_of(sso(client, "user-3"), 403)
    assert "3 users" in refused["message"]
    assert "STABLESSM_PROXY_USERS" in refused["allowed"]
    assert sso(client, "user-0").status_code == 200, "known users can still enter"
    made = client.post("/api/users", json={"name": "user-3", "identity": "user-3"})
    assert made.status_code == 201, "an administrator can add users"
    assert sso(client, "user-3").json()["user"]["id"] == made.json()["id"]


@pytest.mark.slow
def test_a_proxy_cannot_name_a_user_who_looks_like_another(client: httpx.Client) -> None:
    assert sso(client, "alice").json()["user"]["name"] == "alice 2"
    client.post("/api/users", json={"name": "andr\u00e9"}).raise_for_status()
    assert sso(client, "andr\u00e9").json()["user"]["name"] == "andr\u00e9 2"
