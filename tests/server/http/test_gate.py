"""Every route refuses, for every method, a request without a token or with a foreign Host header, and a write from another
origin."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from server.access.scopes import check_bind, load_or_create_token
from server.access.sessions import Sessions
from server.access.throttle import REMEMBERED, FailedTokens, RateLimit
from server.access.token_cache import TokenCache
from server.http.app import create_app
from server.http.content_policy import HEADERS
from server.http.credentials import COOKIE, allowed_hosts
from tests.server.http_service import BEARER, BODY, TOKEN, application, client_of, error_of, settings

pytestmark = pytest.mark.slow

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
OPEN = {"/healthz", "/login"}


@pytest.fixture
def app(sqlite_url: str, tmp_path: Path) -> FastAPI:
    return application(sqlite_url, tmp_path)


@pytest.fixture
def client(app: FastAPI) -> Iterator[httpx.Client]:
    with client_of(app, token=None) as client:
        yield client


def paths(app: FastAPI) -> list[str]:
    templates = [route.path for route in app.state.routes] + ["/openapi.json"]
    return [re.sub(r"\{[^}]*\}", "1", path) for path in templates]


def test_no_route_and_no_method_answers_without_a_token(app: FastAPI, client: httpx.Client) -> None:
    everything = [*paths(app), "/nope", "/docs", "/static/x/base.css", "//", "/API/runs", "/api/runs/", "/healthz/", "/login/x"]
    assert len(everything) > 35
    for path in set(everything) - OPEN:
        for method in METHODS:
            answer = client.request(method, path)
            assert answer.status_code == 401, (method, path, answer.status_code)


def test_the_tests_of_the_gate_cover_every_route_of_the_openapi_document(app: FastAPI) -> None:
    walked = {route.path.replace(":path", "") for route in app.state.routes}
    assert set(app.openapi()["paths"]) <= walked
    assert len(app.openapi()["paths"]) >= 19


def test_public_pages_reveal_no_secret(client: httpx.Client) -> None:
    assert client.get("/healthz").json()["status"] == "ok"
    page = client.get("/login")
    assert page.status_code == 200
    assert TOKEN not in page.text


@pytest.mark.parametrize(
    "header",
    ["Bearer", "Bearer ", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", TOKEN, "Bearer \u00fc".encode("latin1")],
)
def test_a_wrong_token_is_refused(client: httpx.Client, header: str | bytes) -> None:
    error_of(client.get("/api/runs", headers=[("Authorization", header)]), 401)


def test_the_right_token_is_accepted(client: httpx.Client) -> None:
    assert client.get("/api/runs", headers=BEARER).status_code == 200
    assert client.get("/api/runs", headers={"Authorization": f"bearer {TOKEN}"}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example:8000", "127.0.0.1", "127.0.0.1:9000", "127.0.0.1:8000@evil", "", "localhost.:8000"]
)
def test_a_foreign_host_is_refused_even_with_a_token(client: httpx.Client, host: str) -> None:
    for path in ("/api/runs", "/healthz", "/login", "/"):
        assert error_of(client.get(path, headers={**BEARER, "Host": host}), 421)["field"] == "Host"


def test_a_request_with_two_host_headers_is_refused(client: httpx.Client) -> None:
    headers = [("Host", "127.0.0.1:8000"), ("Host", "evil.example"), *BEARER.items()]
    error_of(client.get("/api/runs", headers=headers), 421)


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize(
    "headers",
    [{"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": "http://127.0.0.1:9000"}, {"Sec-Fetch-Site": "cross-site"},
     {"Sec-Fetch-Site": "same-site"}],
    ids=lambda h: "=".join(*h.items()),
)  # fmt: skip
def test_a_write_from_another_origin_is_refused(client: httpx.Client, method: str, headers: dict[str, str]) -> None:
    assert error_of(client.request(method, "/api/runs/1", headers={**BEARER, **headers}), 403)["field"] == "Origin"


def test_a_form_of_our_own_page_is_accepted_and_a_sandboxed_form_is_refused(client: httpx.Client) -> None:
    own = {"Origin": "null", "Sec-Fetch-Site": "same-origin"}  # Chromium sends these headers under Referrer-Policy: no-referrer
    assert client.post("/login", data={"token": TOKEN}, headers=own).status_code == 303
    error_of(client.post("/login", data={"token": TOKEN}, headers=own | {"Sec-Fetch-Site": "cross-site"}), 403)
    error_of(client.post("/login", data={"token": TOKEN}, headers={"Origin": "null"}), 403)


def test_a_url_with_the_token_sets_a_cookie_and_redirects_to_the_url_without_it(client: httpx.Client) -> None:
    answer = client.get(f"/runs/7?token={TOKEN}&layer=2")
    assert (answer.status_code, answer.headers["Location"]) == (303, "/runs/7?layer=2")
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    assert TOKEN not in cookie
    assert client.get("/api/runs").status_code == 200  # httpx has stored the cookie


def test_a_wrong_token_in_the_url_sets_no_cookie(client: httpx.Client) -> None:
    answer = client.get("/?token=wrong")
    assert answer.status_code == 401
    assert "Set-Cookie" not in answer.headers


def test_the_redirect_after_a_token_in_the_url_stays_on_this_server(client: httpx.Client) -> None:
    answer = client.get(f"/%2Fevil.example/?token={TOKEN}")
    assert answer.status_code == 303
    assert answer.headers["Location"] == "/evil.example/"


def test_a_cookie_alone_is_not_enough_for_a_write(client: httpx.Client) -> None:
    client.get(f"/?token={TOKEN}")
    error_of(client.post("/api/runs", json=BODY), 403)
    assert client.post("/api/runs", json=BODY, headers={"Origin": "http://127.0.0.1:8000"}).status_code == 201
    assert client.post("/api/runs", json=BODY, headers={"Sec-Fetch-Site": "same-origin"}).status_code == 201


def test_a_forged_cookie_is_refused(client: httpx.Client, app: FastAPI) -> None:
    access = app.state.access
    token_cache = access.token_cache
    good = access.sessions.new_cookie(token_cache.owner)
    other = TokenCache(app.state.database, "another-token-of-the-tests")
    strange = Sessions(other, "another-token-of-the-tests")
    number, until, mark = good.split(".")
    forged = [
        strange.new_cookie(other.owner), TOKEN, token_cache.owner.sha256, good[:-1], good + "0", f"1.{until}.{mark}", "..", "0",
        f"{number}.{int(until) + 1}.{mark}", f"{number}.{until}.", f"{number}.{until}", f".{until}.{mark}", f"-1.{until}.{mark}",
        f"{number}.{'9' * 40}.{mark}",
    ]  # fmt: skip
    for value in forged:
        error_of(client.get("/api/runs", headers={"Cookie": f"{COOKIE}={value}"}), 401)
    assert client.get("/api/runs", headers={"Cookie": f"{COOKIE}={good}"}).status_code == 200


def test_signing_out_ends_the_session(client: httpx.Client) -> None:
    client.get(f"/?token={TOKEN}")
    answer = client.post("/logout", headers={"Origin": "http://127.0.0.1:8000"})
    assert (answer.status_code, answer.headers["Location"]) == (303, "/login")
    error_of(client.get("/api/runs"), 401)


def test_a_user_can_sign_in_with_the_form(client: httpx.Client) -> None:
    wrong = client.post("/login", data={"token": "wrong", "next": "/alerts"})
    assert wrong.status_code == 401
    assert "Set-Cookie" not in wrong.headers
    right = client.post("/login", data={"token": TOKEN, "next": "/alerts"})
    assert (right.status_code, right.headers["Location"]) == (303, "/alerts")
    assert client.get("/api/runs").status_code == 200


@pytest.mark.parametrize(
    "target", ["//evil.example", "https://evil.example", "/\\evil.example", "\\\\evil", "javascript:alert(1)"]
)
def test_signing_in_never_redirects_to_another_site(client: httpx.Client, target: str) -> None:
    assert client.post("/login", data={"token": TOKEN, "next": target}).headers["Location"] == "/"


def test_an_unauthenticated_page_shows_the_sign_in_form_and_the_api_gives_an_error(client: httpx.Client) -> None:
    browser = {"Accept": "text/html,application/xhtml+xml"}
    page = client.get("/runs/1", headers=browser)
    assert page.status_code == 401
    assert 'action="/login"' in page.text
    error_of(client.get("/api/runs/1", headers=browser), 401)


def test_every_response_has_the_security_headers(client: httpx.Client) -> None:
    for answer in (
        client.get("/healthz"),
        client.get("/"),
        client.get("/api/runs", headers={"Host": "evil"}),
        client.get("/login"),
    ):
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert "unsafe-inline'; script" not in answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert answer.headers["Cache-Control"] == "no-store"
        assert not any(name.startswith("access-control") for name in answer.headers)


def test_host_and_origin_are_checked_even_without_authentication(sqlite_url: str, tmp_path: Path) -> None:
    with client_of(create_app(settings(sqlite_url, tmp_path, auth=False)), token=None) as client:
        assert client.get("/api/runs").status_code == 200
        error_of(client.get("/api/runs", headers={"Host": "evil.example"}), 421)
        error_of(client.post("/api/runs", json=BODY, headers={"Origin": "http://evil.example"}), 403)


def test_a_server_that_others_can_reach_needs_a_token_and_host_names(tmp_path: Path) -> None:
    check_bind("127.0.0.1", None, (), no_auth=True)
    check_bind("0.0.0.0", "secret-of-my-own", ("monitor.example:8000",), no_auth=False)
    for token, hosts, no_auth, word in [
        (None, ("a",), False, "STABLESSM_TOKEN"), ("secret-of-my-own", (), False, "STABLESSM_HOSTS"),
        ("secret-of-my-own", ("a",), True, "--no-auth"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=word):
            check_bind("0.0.0.0", token, hosts, no_auth=no_auth)
    with pytest.raises(ValueError, match="STABLESSM_TOKEN"):
        create_app(settings(f"sqlite:///{tmp_path}/x.db", tmp_path, host="0.0.0.0", token=None))


def test_the_allowed_hosts_are_exact_names_and_ports() -> None:
    assert allowed_hosts("127.0.0.1", 8000) == {"127.0.0.1:8000", "localhost:8000", "[::1]:8000"}
    assert allowed_hosts("0.0.0.0", 8000, ("Monitor.Example", "a:1")) == {"monitor.example", "monitor.example:8000", "a:1"}


def test_the_token_file_is_private_and_its_token_is_long_and_reused(tmp_path: Path) -> None:
    path = tmp_path / "state" / "token"
    token = load_or_create_token(path)
    assert len(token) >= 43
    assert path.stat().st_mode & 0o777 == 0o600
    assert load_or_create_token(path) == token
    path.write_text("short\n")
    with pytest.raises(ValueError, match="at least 16"):
        load_or_create_token(path)


def test_no_object_s_repr_contains_the_token(app: FastAPI) -> None:
    access = app.state.access
    assert TOKEN not in repr(access) + repr(access.token_cache.owner) + repr(app.state.settings)
    assert access.token_cache.owner.sha256 not in repr(access.token_cache.owner)


@pytest.mark.parametrize(
    "origin", ["http://[", "http://[::1", "null", "", "http://127.0.0.1:8000@evil", "http://evil#127.0.0.1:8000"]
)
def test_a_malformed_origin_is_refused_as_a_foreign_origin(client: httpx.Client, origin: str) -> None:
    assert error_of(client.post("/api/runs", json=BODY, headers={**BEARER, "Origin": origin}), 403)["field"] == "Origin"


def test_the_cookie_is_secure_when_the_origin_uses_https(sqlite_url: str, tmp_path: Path) -> None:
    app = create_app(settings(sqlite_url, tmp_path, hosts=("monitor.example",)))
    with client_of(app, token=None) as client:
        headers = {"Host": "monitor.example", "Origin": "https://monitor.example"}
        cookie = client.post("/login", data={"token": TOKEN}, headers=headers).headers["Set-Cookie"].lower()
        assert "; secure" in cookie
        headers["Origin"] = "http://monitor.example"
        assert "; secure" not in client.post("/login", data={"token": TOKEN}, headers=headers).headers["Set-Cookie"].lower()


def test_every_error_response_has_every_security_header(client: httpx.Client) -> None:
    refusals = [
        client.get("/api/runs"), client.get("/api/runs", headers={"Host": "evil"}), client.post("/api/runs", headers={"Origin": "http://e"}),
        client.post("/api/runs", content=b"x", headers=BEARER), client.post("/api/runs", json={}, headers=BEARER),
        client.get("/api/nothing", headers=BEARER), client.put("/api/runs", headers=BEARER),
    ]  # fmt: skip
    assert [answer.status_code for answer in refusals] == [401, 421, 403, 415, 422, 404, 405]
    for answer in refusals:
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS


def test_ten_wrong_tokens_a_minute_lock_out_only_their_own_address(client: httpx.Client, app: FastAPI) -> None:
    app.state.access.failures._clock = lambda: 0.0  # all within one minute
    assert client.get("/api/runs", headers=BEARER).status_code == 200  # this client signs in before the wrong guesses
    for number in range(10):
        ways = [
            lambda n: client.get("/api/runs", headers={"Authorization": f"Bearer guess-{n}"}),
            lambda n: client.get(f"/?token=guess-{n}"),
            lambda n: client.post("/login", data={"token": f"guess-{n}"}),
        ]
        assert ways[number % 3](number).status_code == 401
    answer = client.get("/api/runs", headers={"Authorization": "Bearer guess"})
    assert error_of(answer, 429)["code"] == "too_many_requests"
    assert 1 <= int(answer.headers["Retry-After"]) <= 61
    page = client.post("/login", data={"token": "guess"})
    assert page.status_code == 429
    assert "Retry-After" in page.headers
    assert client.get("/api/runs", headers=BEARER).status_code == 200
    assert client.get("/api/runs").status_code == 401  # a request without a token is not a guess
    failures = app.state.access.failures
    assert failures.wait("127.0.0.1", "some other token") > 0
    assert failures.wait("192.0.2.9", "some other token") == 0


def test_throttling_uses_bounded_memory_and_ends_after_a_minute() -> None:
    now = [0.0]
    failures = FailedTokens(10, clock=lambda: now[0])
    for _ in range(10):
        failures.failed("2001:db8::1")
    assert 59 < failures.wait("2001:db8::2", "") <= 60, "a whole /64 network must count as one client"
    assert failures.wait("2001:db8:0:1::2", "") == 0
    now[0] = 61.0
    assert failures.wait("2001:db8::2", "") == 0
    for number in range(REMEMBERED + 100):
        failures.failed(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
        failures.succeeded("10.0.0.1", str(number))
    assert len(failures._failed) == len(failures._good) == REMEMBERED


def test_a_rate_limit_allows_a_burst_and_then_a_fixed_number_per_minute() -> None:
    now = [0.0]
    budget = RateLimit(60, clock=lambda: now[0])
    assert [budget.take("a") for _ in range(600)] == [0.0] * 600
    assert 0 < budget.take("a") <= 1.0
    assert budget.take("b") == 0
    now[0] = 1.1
    assert budget.take("a") == 0
    assert budget.take("a") > 0
    assert all(RateLimit(0).take("a") == 0 for _ in range(1000))


def test_submissions_are_rate_limited_and_reads_are_not(sqlite_url: str, tmp_path: Path) -> None:
    app = application(sqlite_url, tmp_path, runs_per_minute=1)
    app.state.access.new_runs._clock = lambda: 0.0  # all within one minute
    with client_of(app) as client:
        statuses = [client.post("/api/runs", json={}).status_code for _ in range(10)]
        assert statuses == [422] * 10
        answer = client.post("/api/runs", json=BODY)
        assert "1 per minute" in error_of(answer, 429)["allowed"]
        assert 1 <= int(answer.headers["Retry-After"]) <= 61
        error_of(client.post("/api/sweeps", json={}), 429)
        assert client.get("/api/runs").status_code == 200


def test_a_full_queue_refuses_submissions(sqlite_url: str, tmp_path: Path) -> None:
    with client_of(application(sqlite_url, tmp_path, max_queued=3)) as client:
        grid = {"base": BODY, "grid": {"train.seed": [1, 2, 3, 4]}}
        assert error_of(client.post("/api/sweeps", json=grid), 429)["field"] == "queue"
        assert all(client.post("/api/runs", json=BODY).status_code == 201 for _ in range(3))
        answer = client.post("/api/runs", json=BODY)
        assert "STABLESSM_MAX_QUEUED" in error_of(answer, 429)["allowed"]
        assert answer.headers["Retry-After"] == "60"
        client.post("/api/runs/1/cancel")
        assert client.post("/api/runs", json=BODY).status_code == 201


def test_a_configured_token_must_not_be_short(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least 16"):
        create_app(settings(f"sqlite:///{tmp_path}/x.db", tmp_path, token="short"))
