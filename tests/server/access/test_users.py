"""Users: owners of tokens, names on runs, access to own and other users' runs, quotas."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy import text, update

from server.access.users import MAX_USERS, OWNER
from server.database.connection import Database
from server.database.models import Run, User
from server.lifecycle import transitions as lifecycle
from tests.server.http_service import BODY, application, client_of, error_of
from tests.server.old_code import submitted_by_old_code
from tests.server.recording import CPU, config

pytestmark = [pytest.mark.both_engines, pytest.mark.slow]


@pytest.fixture
def app(database_url: str, tmp_path: Path) -> FastAPI:
    return application(database_url, tmp_path)


@pytest.fixture
def client(app: FastAPI) -> Iterator[httpx.Client]:
    """A client with the owner's token; a request with another Authorization header belongs to another user."""
    with client_of(app) as client:
        yield client


def key_of(client: httpx.Client, name: str, scope: str = "submit", **more: object) -> dict[str, str]:
    made = client.post("/api/tokens", json={"name": name, "scope": scope, **more})
    assert made.status_code == 201, made.text
    return {"Authorization": f"Bearer {made.json()['secret']}"}


def run_of(client: httpx.Client, key: dict[str, str] | None = None) -> int:
    return int(client.post("/api/runs", json=BODY, headers=key).raise_for_status().json()["id"])


def user_id(client: httpx.Client, key: dict[str, str]) -> int:
    return int(client.get("/api/me", headers=key).json()["user"]["id"])


def test_several_tokens_may_belong_to_the_same_user(client: httpx.Client) -> None:
    laptop, cluster = key_of(client, "laptop", user="Alice"), key_of(client, "cluster", "read", user="alice")
    me = client.get("/api/me", headers=laptop).json()
    assert (me["token"], me["scope"], me["user"]["name"]) == ("laptop", "submit", "Alice")
    assert user_id(client, laptop) == user_id(client, cluster)
    one, other = key_of(client, "ci"), key_of(client, "ci")  # each token without a named user gets its own user
    assert [client.get("/api/me", headers=key).json()["user"]["name"] for key in (one, other)] == ["ci", "ci 2"]
    listed = {token["name"]: token["user"] for token in client.get("/api/tokens").json()["tokens"][2:]}
    assert listed == {"laptop": "Alice", "cluster": "Alice"}
    assert client.get("/api/me").json()["user"] == client.get("/api/users").json()["users"][0]
    assert client.get("/api/me").json()["user"]["name"] == "owner"


def test_a_run_shows_its_submitter_s_current_name(client: httpx.Client) -> None:
    alice = key_of(client, "alice")
    run, own = run_of(client, alice), run_of(client)
    assert client.get(f"/api/runs/{run}").json()["user"] == "alice"
    answer = client.patch("/api/me", json={"name": "Alice B."}, headers=alice)
    assert answer.json()["user"]["name"] == "Alice B."
    client.patch("/api/me", json={"name": "The lab"}).raise_for_status()
    shown = {one["id"]: (one["user"], one["user_id"]) for one in client.get("/api/runs").json()["runs"]}
    assert shown == {run: ("Alice B.", user_id(client, alice)), own: ("The lab", OWNER)}
    assert "Alice B." in client.get("/").text
    assert "Alice B." in client.get(f"/runs/{run}").text


@pytest.mark.parametrize("taken", ["BOB", "bob", "owner", "ｂｏｂ"])
def test_a_user_cannot_take_another_user_s_name(client: httpx.Client, taken: str) -> None:
    key_of(client, "bob")
    alice = key_of(client, "alice")
    error = error_of(client.patch("/api/me", json={"name": taken}, headers=alice), 409)
    assert error["field"] == "name"
    assert client.get("/api/me", headers=alice).json()["user"]["name"] == "alice"
    assert error_of(client.post("/api/users", json={"name": taken}), 409)["field"] == "name"


@pytest.mark.parametrize("name", ["", " ", "a\nb", "x" * 101, None, 3])
def test_an_unreadable_user_name_is_refused(client: httpx.Client, name: object) -> None:
    assert error_of(client.patch("/api/me", json={"name": name}), 422)["field"] == "name"


def test_a_token_without_a_user_gets_a_user_when_it_sets_a_name(app: FastAPI, client: httpx.Client) -> None:
    key = key_of(client, "old")
    with app.state.database.write() as session:  # as an older release stores tokens
        session.execute(text("UPDATE tokens SET user_id = NULL"))
    app.state.access.token_cache.forget()
    assert client.get("/api/me", headers=key).json()["user"] is None
    run = run_of(client, key)
    assert client.get(f"/api/runs/{run}").json()["user"] == "old"  # the name of the run's token
    assert [one["id"] for one in client.get("/api/runs", params={"mine": True}, headers=key).json()["runs"]] == [run]
    assert client.patch("/api/me", json={"name": "zoe"}, headers=key).json()["user"]["name"] == "zoe"
    assert client.get("/api/me", headers=key).json()["user"]["name"] == "zoe"


def test_a_submit_token_may_change_only_its_user_s_runs(client: httpx.Client) -> None:
    alice, also_alice, bob = key_of(client, "a", user="alice"), key_of(client, "b", user="alice"), key_of(client, "bob")
    run = run_of(client, alice)
    writes = (
        ("PATCH", f"/api/runs/{run}", {"name": "x"}),
        ("POST", f"/api/runs/{run}/cancel", None),
        ("POST", f"/api/runs/{run}/resume", None),
    )
    for method, path, body in writes:
        error = error_of(client.request(method, path, json=body, headers=bob), 403)
        assert (error["field"], "own" in error["allowed"]) == ("run_id", True)
    for method, path, body in writes:
        assert client.request(method, path, json=body, headers=also_alice).status_code == 200, path
    assert client.post(f"/api/runs/{run}/clone", headers=bob).json()["user"] == "bob"  # a readable run may be cloned
    assert client.post(f"/api/runs/{run}/cancel").status_code == 200  # an administrator may change everything
    sweep = client.post("/api/sweeps", json={"base": BODY, "grid": {"train.seed": [1, 2]}}, headers=alice).json()["id"]
    assert error_of(client.post(f"/api/sweeps/{sweep}/cancel", headers=bob), 403)["field"] == "run_id"
    assert client.post(f"/api/sweeps/{sweep}/cancel", headers=alice).status_code == 200


def test_a_grant_to_change_all_runs_can_be_given_and_revoked(client: httpx.Client) -> None:
    run, bob = run_of(client), key_of(client, "bob")
    for granted, status in ((True, 200), (False, 403)):
        client.patch(f"/api/users/{user_id(client, bob)}", json={"may_change_all": granted}).raise_for_status()
        assert client.patch(f"/api/runs/{run}", json={"name": "b"}, headers=bob).status_code == status


def test_runs_without_a_user_may_be_changed_by_their_token_and_by_administrators(app: FastAPI, client: httpx.Client) -> None:
    mine, other = key_of(client, "mine"), key_of(client, "other")
    run = submitted_by_old_code(app.state.database)
    assert client.get(f"/api/runs/{run}").json()["user"] == "owner"
    error_of(client.patch(f"/api/runs/{run}", json={"name": "x"}, headers=mine), 403)
    number = client.get("/api/me", headers=mine).json()["token_id"]
    with app.state.database.write() as session:
        session.execute(update(Run).values(submitted_by=number))
    assert client.patch(f"/api/runs/{run}", json={"name": "x"}, headers=mine).status_code == 200
    error_of(client.patch(f"/api/runs/{run}", json={"name": "x"}, headers=other), 403)
    assert client.patch(f"/api/runs/{run}", json={"name": "y"}).status_code == 200


def test_the_api_list_and_the_runs_page_can_show_only_my_runs(client: httpx.Client) -> None:
    alice = key_of(client, "alice")
    runs = [run_of(client, key) for key in (alice, None, alice)]
    for key, own in ((alice, [runs[2], runs[0]]), (None, [runs[1]])):
        first = client.get("/api/runs", params={"mine": True, "limit": 1}, headers=key).json()
        assert [run["id"] for run in first["runs"]] == own[:1]
        rest = client.get("/api/runs", params={"mine": True, "q": "status=queued"}, headers=key).json()
        assert [run["id"] for run in rest["runs"]] == own
        page = client.get("/", params={"mine": True}, headers=key).text
        assert [run for run in runs if f'href="/runs/{run}"' in page] == sorted(own)


def test_an_ended_run_still_shows_its_host_gpu_and_worker(app: FastAPI, client: httpx.Client) -> None:
    run = run_of(client)
    with app.state.database.write() as session:
        claim = lifecycle.claim(session, "node-7:42:1763711999", CPU | {"gpus": ["NVIDIA H200"]})
        assert claim is not None
    with app.state.database.write() as session:
        lifecycle.finish(session, run, claim.attempt, "finished")
    shown = client.get(f"/api/runs/{run}").json()
    assert (shown["host"], shown["gpu_name"], shown["worker"]) == ("node-7", "NVIDIA H200", "node-7:42:1763711999")
    page = client.get(f"/runs/{run}").text
    assert "node-7" in page
    assert "NVIDIA H200" in page


def test_the_quota_of_queued_runs_refuses_a_submission_until_a_run_leaves_the_queue(client: httpx.Client) -> None:
    alice, bob = key_of(client, "alice"), key_of(client, "bob")
    client.patch(f"/api/users/{user_id(client, alice)}", json={"max_queued": 2}).raise_for_status()
    first = run_of(client, alice)
    sweep = {"base": BODY, "grid": {"train.seed": [1, 2]}}
    for answer in (client.post("/api/sweeps", json=sweep, headers=alice),):
        assert error_of(answer, 429)["field"] == "max_queued"
    run_of(client, alice)
    refused = client.post("/api/runs", json=BODY, headers=alice)
    error = error_of(refused, 429)
    assert (error["field"], error["allowed"]) == ("max_queued", "at most 2 queued runs of this user")
    assert "alice" in error["message"]
    assert refused.headers["Retry-After"] == "60"
    assert error_of(client.post(f"/api/runs/{first}/clone", headers=alice), 429)["field"] == "max_queued"
    run_of(client, bob)
    client.post(f"/api/runs/{first}/cancel", headers=alice).raise_for_status()
    run_of(client, alice)
    assert error_of(client.post(f"/api/runs/{first}/resume", headers=alice), 429)["field"] == "max_queued"
    assert client.get(f"/api/runs/{first}").json()["status"] == "cancelled"


def test_a_user_who_has_reached_the_byte_quota_cannot_submit(app: FastAPI, client: httpx.Client) -> None:
    alice = key_of(client, "alice")
    client.patch(f"/api/users/{user_id(client, alice)}", json={"max_bytes": 1000}).raise_for_status()
    run = run_of(client, alice)
    with app.state.database.write() as session:
        session.execute(update(Run).where(Run.id == run).values(bytes_stored=1000))
    error = error_of(client.post("/api/runs", json=BODY, headers=alice), 422)
    assert error["field"] == "max_bytes"
    assert "1,000 bytes" in error["message"]
    me = client.get("/api/me", headers=alice).json()["user"]
    assert (me["bytes"], me["queued"], me["running"], me["max_bytes"]) == (1000, 1, 0, 1000)


def submitted_for(database: Database, user: int, count: int) -> list[int]:
    with database.write() as session:
        return [lifecycle.submit(session, config(), user_id=user, submitted_by=user).id for _ in range(count)]


def test_simultaneous_claims_do_not_exceed_the_quota_of_running_runs(database: Database) -> None:
    with database.write() as session:
        session.add(User(id=7, name="seven", max_running=2, created_at=1.0))
    capped, free = submitted_for(database, 7, 6), submitted_for(database, 8, 3)
    start = threading.Barrier(6)

    def work(number: int) -> list[int]:
        start.wait()
        taken = []
        for _ in range(3):
            with database.write() as session:
                if (claim := lifecycle.claim(session, f"w:{number}:1", CPU)) is not None:
                    taken.append(claim.run_id)
        return taken

    with ThreadPoolExecutor(6) as threads:
        taken = [run for mine in threads.map(work, range(6)) for run in mine]
    assert sorted(taken) == sorted([*capped[:2], *free])


def test_fair_sharing_counts_runs_per_user_and_not_per_token(database: Database) -> None:
    with database.write() as session:
        many = [lifecycle.submit(session, config(), user_id=1, submitted_by=token).id for token in (11, 12, 13)]
        one = lifecycle.submit(session, config(), user_id=2, submitted_by=14).id
    order = []
    for _ in range(4):
        with database.write() as session:
            claim = lifecycle.claim(session, "w:1:1", CPU)
            order.append(claim.run_id if claim else None)
    assert order == [many[0], one, many[1], many[2]]


def test_a_run_reports_that_it_waits_for_its_user_s_quota(app: FastAPI, client: httpx.Client) -> None:
    alice = key_of(client, "alice")
    client.patch(f"/api/users/{user_id(client, alice)}", json={"max_running": 0}).raise_for_status()
    run = run_of(client, alice)
    with app.state.database.write() as session:
        lifecycle.register_worker(session, "w:1:1", "w", 1, CPU)
        assert lifecycle.claim(session, "w:1:1", CPU) is None
    assert client.get(f"/api/runs/{run}").json()["waits_for"] == "other runs of the same user, who may run 0 at once"


def test_only_administrators_can_create_list_and_change_users(client: httpx.Client) -> None:
    made = client.post("/api/users", json={"name": "carol", "identity": "carol@example.org"})
    assert made.status_code == 201
    path = f"/api/users/{made.json()['id']}"
    changed = client.patch(path, json={"max_running": 3, "max_bytes": 2**40}).json()
    assert (changed["max_running"], changed["max_queued"], changed["max_bytes"]) == (3, None, 2**40)
    assert client.patch(path, json={"max_running": None}).json()["max_running"] is None
    assert [user["name"] for user in client.get("/api/users").json()["users"]] == ["owner", "carol"]
    for patch, field in (({"max_running": -1}, "max_running"), ({"max_bytes": "x"}, "max_bytes"), ({"quota": 1}, "quota")):
        assert error_of(client.patch(path, json=patch), 422)["field"] == field
    assert error_of(client.patch("/api/users/99", json={}), 404)["field"] == "user_id"
    assert error_of(client.post("/api/users", json={"name": "d", "identity": "carol@example.org"}), 409)
    submit = key_of(client, "s")
    for method, where in (("GET", "/api/users"), ("POST", "/api/users"), ("PATCH", path)):
        assert error_of(client.request(method, where, json={}, headers=submit), 403)["field"] == "scope"
    assert MAX_USERS == 10_000
